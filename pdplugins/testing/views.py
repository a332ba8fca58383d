"""What policies see, made by hand: workers and their loads, requests, deployments, and planner views."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.request import Request, Slo
from pdplugins.contracts.workers import ANYTHING, Capabilities, LoadView, Pool, Role, WorkerView
from pdplugins.testing.models import flat_model


@dataclass
class Load:
    """A `pdplugins.types.LoadView` that a test may change: the load of an idle worker unless told otherwise."""

    worker: str = "w"
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    running_requests: float = 0.0
    running_tokens: float = 0.0
    recent_ttft_s: float | None = None
    recent_tbt_s: float | None = None
    decode_requests: float | None = None
    decode_tokens: float | None = None
    prefill_tokens: float | None = None
    prefill_history_tokens: float | None = None


@dataclass
class Worker:
    """A `pdplugins.types.WorkerView` that a test may change.

    Attributes that hosts may leave out are None here too, so that a policy that leans on them is found.
    """

    id: str
    role: Role
    load: LoadView = field(default_factory=Load)
    kv_capacity_tokens: int = 100_000
    tp: int | None = None
    free_kv_tokens: int | None = None
    capabilities: Capabilities | None = None
    cached_blocks: Container[int] = frozenset()


def worker(name: str, role: Role | None = None, *, kv_capacity_tokens: int = 100_000, **changed: Any) -> Worker:
    """Return a worker.

    :param role: where it is not given, a name that begins with ``p`` means prefill, any other one decode.
    :param changed: attributes of `Worker` or of its `Load`.
    """
    role = role or (Role.PREFILL if name.startswith("p") else Role.DECODE)
    own = {key: changed.pop(key) for key in ("tp", "free_kv_tokens", "capabilities", "cached_blocks") if key in changed}
    return Worker(name, role, changed.pop("load", None) or Load(name, **changed), kv_capacity_tokens, **own)


def snapshot(view: WorkerView) -> Worker:
    """Return a copy of a live view that stays as it is."""
    load = Load(**{name: getattr(view.load, name) for name in Load.__dataclass_fields__})
    others = ("id", "role", "kv_capacity_tokens", "tp", "free_kv_tokens", "capabilities", "cached_blocks")
    return Worker(load=load, **{name: getattr(view, name) for name in others})


def fleet(prefill: int, decode: int, **changed: Any) -> tuple[Worker, ...]:
    """Return the workers ``p0``, ``p1``, … and ``d0``, ``d1``, …, which say all that a host may say."""
    told: dict[str, Any] = {"tp": 1, "free_kv_tokens": 100_000, "capabilities": ANYTHING, **changed}
    for name in ("decode_requests", "decode_tokens", "prefill_tokens", "prefill_history_tokens"):
        told.setdefault(name, 0.0)
    names = [f"p{n}" for n in range(prefill)] + [f"d{n}" for n in range(decode)]
    return tuple(worker(name, **told) for name in names)


def request(name: str = "r", prompt_tokens: int = 1000, arrival_s: float = 0.0, **more: Any) -> Request:
    """Return a request.

    :param more: other attributes of `pdplugins.types.Request`.
    """
    return Request(name, arrival_s, prompt_tokens, **more)


def deployment(
    perf: PerfModel | None = None, *, ttft_s: float = 2.0, tpot_s: float = 0.08, **changed: Any
) -> Deployment:
    """Return a deployment of eight GPUs, one a worker, that start within 30 s and decode up to 256 requests.

    :param perf: `flat_model()` where it is not given.
    :param changed: other attributes of `pdplugins.types.Deployment`.
    """
    chosen = {"gpu_budget": 8, "prefill_tp": 1, "decode_tp": 1, "startup_s": 30.0, "max_batch": 256} | changed
    return Deployment(slo=Slo(ttft_s, tpot_s), perf=flat_model() if perf is None else perf, **chosen)


def planner_view(
    now_s: float = 0.0,
    rate: float | None = 1.0,
    *,
    window_s: float = 5.0,
    isl_tokens: float | None = 1000.0,
    osl_tokens: float | None = 100.0,
    prefill: Pool | None = None,
    decode: Pool | None = None,
) -> PlannerView:
    """Return what a planner sees: `rate` requests per second, or no traffic metrics where it is None.

    :param prefill: one ready worker where it is not given; so is `decode`.
    """
    traffic = None if rate is None else Traffic(window_s, rate * window_s, isl_tokens, osl_tokens)
    return PlannerView(now_s, traffic, prefill or Pool(1), decode or Pool(1))
