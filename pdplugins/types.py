"""What a policy sees and what it answers: frozen data, shared by every host.

Nothing here knows a host, a clock or a file. Time is an argument (``now_s``), lengths are in tokens, and the unit
of every other quantity is the end of its name. ``None`` always means *the host did not say*; it never means zero.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeGuard, runtime_checkable


class Role(StrEnum):
    """The phase of a request that a worker serves."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objectives of one request."""

    ttft_s: float
    tpot_s: float


# --- performance ---------------------------------------------------------------------------------------------------


class PerfModel(Protocol):
    """How fast one worker is. `pdplugins.perf` implements it over measured or modelled tables."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds to prefill one prompt of `tokens` tokens at tensor-parallel size `tp`, alone in its batch."""
        ...

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        """Seconds of one decode step of `batch` requests whose mean context is `context_tokens`."""
        ...

    def transfer_s(self, tokens: float) -> float:
        """Seconds to move the KV cache of `tokens` tokens from a prefill to a decode worker."""
        ...

    def kv_capacity_tokens(self, tp: int) -> int:
        """Tokens of KV cache that one worker holds: V_mem / M_token of DOPD Eq. 11 and 13."""
        ...

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        """Tokens of KV cache that one decode step of `step_s` seconds can read: V_BW / M_token of DOPD Eq. 12."""
        ...

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        """Tensor-parallel sizes that the tables hold for `role`, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is fixed while a planner runs: the promise, the machine and its limits."""

    slo: Slo
    perf: PerfModel
    gpu_budget: int
    """GPUs that prefill and decode workers may use together."""
    prefill_tp: int
    """GPUs of one prefill worker."""
    decode_tp: int
    """GPUs of one decode worker."""
    startup_s: float
    """Seconds from the decision to start a worker until it serves."""
    max_batch: int
    """Largest decode batch of one worker (its CUDA-graph batch size): cc_g of DOPD Eq. 14."""
    kv_tokens: int | None = None
    """Tokens of KV cache that one decode worker holds, as its engine says; None for the profile's (DOPD Eq. 11)."""

    def gpus(self, prefill: int, decode: int) -> int:
        """GPUs that `prefill` plus `decode` workers use."""
        return prefill * self.prefill_tp + decode * self.decode_tp

    def fit(self, prefill: int, decode: int) -> tuple[int, int]:
        """Return the pools that a wish becomes within the GPU budget; at least one worker of each role stays.

        Where the budget binds: the pools with the largest throughput that fit. Both phases keep as equal a share of
        their wish as whole workers allow, which is DOPD's Eq. 15 scaled down.
        """
        used = self.gpus(prefill, decode)
        if used <= self.gpu_budget:
            return prefill, decode

        def served(pools: tuple[int, int]) -> tuple[float, int]:
            return min(pools[0] / prefill, pools[1] / decode), -self.gpus(*pools)

        # More decode workers than the even share leave less for prefill. Fewer help only until that frees a GPU for it.
        even = decode * self.gpu_budget / used
        fewest = int(even) - math.ceil(self.prefill_tp / self.decode_tp)
        most = min(math.ceil(even), (self.gpu_budget - self.prefill_tp) // self.decode_tp)
        rooms = (
            (d, (self.gpu_budget - d * self.decode_tp) // self.prefill_tp) for d in range(max(fewest, 1), most + 1)
        )
        return max(((min(prefill, room), d) for d, room in rooms), key=served, default=(1, 1))


# --- planner: how many workers of each role ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the clients did and felt since the planner was last asked."""

    window_s: float
    requests: float
    """Requests that arrived in the window."""
    isl_tokens: float | None = None
    """Mean input sequence length; None when no request tells."""
    osl_tokens: float | None = None
    """Mean output sequence length; None when no request finished."""
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.window_s if self.window_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What one engine said last about its queue and its batch."""

    worker: str
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    """Prompt tokens that wait for prefill (prefill role), or context tokens of preempted requests (decode role)."""
    running_requests: float = 0.0
    running_tokens: float = 0.0
    """Prompt tokens in the current prefill step, or context tokens in the current decode step."""
    recent_ttft_s: float | None = None
    """Mean time to first token of the prompts whose prefill ended here in the last 10 s or so."""
    recent_tbt_s: float | None = None
    """Time between tokens of the requests that decode here now."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one role."""

    ready: int
    starting: int = 0
    draining: int = 0
    loads: tuple[WorkerLoad, ...] = ()
    """Loads of the workers that reported; fewer than `ready` when some did not."""

    @property
    def coming(self) -> int:
        """Workers that serve once every start has finished."""
        return self.ready + self.starting

    @property
    def queued_requests(self) -> float:
        """Requests that wait, over all workers that reported."""
        return sum(load.queued_requests for load in self.loads)

    @property
    def queued_tokens(self) -> float:
        """Tokens that wait, over all workers that reported."""
        return sum(load.queued_tokens for load in self.loads)

    @property
    def running_requests(self) -> float:
        """Requests in the current steps, over all workers that reported."""
        return sum(load.running_requests for load in self.loads)


@dataclass(frozen=True, slots=True)
class PlannerView:
    """Everything a planner may use for one decision."""

    now_s: float
    traffic: Traffic | None
    prefill: Pool
    decode: Pool


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """How many workers of each role there should be."""

    prefill: int
    decode: int
    reason: str
    """One line that a person can read in a log: what was seen, what follows."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """Named numbers behind the decision (forecasts, utilisations), shown live and exported as metrics."""


class Planner(Protocol):
    """Decides how many workers of each role there should be. Called on a tick."""

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        ...

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on. May keep state; must be a pure function of all views so far."""
        ...


# --- router: where each token range runs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request (one round of a session) as it arrives."""

    id: str
    arrival_s: float
    prompt_tokens: int
    predicted_output_tokens: int | None = None
    history_tokens: int = 0
    """Tokens of the prompt that earlier rounds of the session already computed."""
    session: str | None = None
    bound_worker: str | None = None
    """Worker that holds the session's KV cache."""
    blocks: tuple[int, ...] = ()
    """Hashes of the prompt's KV blocks, for prefix-cache-aware routing."""


class LoadView(Protocol):
    """The load of one worker as a router sees it; `WorkerLoad` is one. It may be live: read it, do not keep it."""

    @property
    def worker(self) -> str: ...  # noqa: D102 - see WorkerLoad
    @property
    def queued_requests(self) -> float: ...  # noqa: D102
    @property
    def queued_tokens(self) -> float: ...  # noqa: D102
    @property
    def running_requests(self) -> float: ...  # noqa: D102
    @property
    def running_tokens(self) -> float: ...  # noqa: D102
    @property
    def recent_ttft_s(self) -> float | None: ...  # noqa: D102
    @property
    def recent_tbt_s(self) -> float | None: ...  # noqa: D102


class WorkerView(Protocol):
    """One worker as a router sees it. It may be live, so that a router over hundreds of workers stays cheap."""

    @property
    def id(self) -> str:
        """Name that a placement uses."""
        ...

    @property
    def role(self) -> Role:
        """Phase that the worker serves now; where roles are labels it may do the other one too."""
        ...

    @property
    def load(self) -> LoadView:
        """What waits and runs there."""
        ...

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of KV cache that the worker holds."""
        ...

    @property
    def cached_blocks(self) -> Container[int]:
        """Hashes of the prefix blocks that are there."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """Tokens ``[0, split)`` of prompt plus output run on `first`, the rest on `second`.

    ``split == prompt`` is disaggregation, ``first == second`` is local execution, any other split is a micro-request
    pair (DynaServe). `second` is None while it is still open: the router is asked again when prefill is done (Arrow).
    """

    first: str
    second: str | None
    split: int
    reason: str = ""


class Router(Protocol):
    """Decides where each token range of a request runs.

    `workers` are those that take new work. Hosts pass the same tuple object as long as neither the workers nor their
    roles have changed, so a router may keep what it derives from it; their loads change all the time.
    """

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request, or one round of a session, that has just arrived."""
        ...

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Fill in `second` of a placement that was left open at arrival."""
        ...


@runtime_checkable
class LearnsLengths(Protocol):
    """A router that also wants to know how long the answers were. Hosts that count tokens tell it."""

    def on_finished(self, request: Request, output_tokens: int) -> None:
        """Learn from a request that has finished."""
        ...


@runtime_checkable
class ElasticRouter(Protocol):
    """A router with pools of its own: the role of a worker is a label that it changes. Hosts show them over time."""

    @property
    def pools(self) -> tuple[int, int]:
        """Workers that get new prefills now, and workers that get new decodes."""
        ...


# --- batch scheduler: what one instance runs next -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueuedPrefill:
    """One request that waits for prefill on this instance."""

    request: Request
    remaining_tokens: int
    queued_s: float
    """Time at which it joined the queue."""
    done_tokens: int | None = None
    """Tokens of its prompt whose KV cache is there already; None: the host does not say."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """One instance just before its next step."""

    queue: tuple[QueuedPrefill, ...]
    decode_requests: int
    decode_context_tokens: int
    """Context of all running decodes together."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the next step of one instance runs."""

    prefill_tokens: Mapping[str, int]
    """Request id to the number of its prompt tokens to prefill in this step; empty for decode only."""
    wait_s: float = 0.0
    """Seconds the instance may idle for more requests before it must ask again."""
    reason: str = ""


class BatchScheduler(Protocol):
    """Decides what one instance runs in its next step."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step."""
        ...

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn from a step that has completed."""
        ...


# --- power controller: watts per GPU ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU of the node."""

    index: int
    role: Role
    draw_w: float
    cap_w: float


@dataclass(frozen=True, slots=True)
class Flip:
    """One GPU changes its role, after it has drained."""

    gpu: int
    role: Role


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """Caps that the GPUs should have, and roles that should change."""

    caps_w: Mapping[int, float]
    flips: tuple[Flip, ...] = ()
    reason: str = ""


class PowerController(Protocol):
    """Moves watts and roles between the GPUs of one node, within the node's budget."""

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `control`."""
        ...

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Return the caps and flips wanted from now on."""
        ...


class PowerBackend(Protocol):
    """The devices of one node: the only place that reads watts and writes caps."""

    def read(self) -> tuple[tuple[float, float], ...]:
        """Return (draw, cap) in watts of every GPU, in index order."""
        ...

    def limits_w(self, gpu: int) -> tuple[float, float]:
        """Return the smallest and the largest cap that the device accepts."""
        ...

    def set_cap_w(self, gpu: int, cap_w: float) -> None:
        """Set one cap. Raises OSError when the device refuses."""
        ...


# --- workload ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """A later round of a session: it arrives `gap_s` after the answer before it, for the time that a tool takes."""

    gap_s: float
    new_tokens: int
    """Tokens of the prompt beyond its history."""
    osl_tokens: int
    history_tokens: int | None = None
    """Leading tokens of the conversation so far that the prompt repeats. None: all of it, the last answer included;
    0: none, as of a client that asks one unrelated question after the other."""

    def history(self, so_far_tokens: int) -> int:
        """Return the tokens of history in the prompt, after a conversation of `so_far_tokens`."""
        return so_far_tokens if self.history_tokens is None else min(self.history_tokens, so_far_tokens)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace, or one session: the request is its first round."""

    arrival_s: float
    """Seconds since the first request of the trace."""
    isl_tokens: int
    osl_tokens: int
    blocks: tuple[int, ...] = ()
    """Hashes of the prompt's blocks where the trace has them (Mooncake: 512 tokens each)."""
    session: str | None = None
    rounds: tuple[Round, ...] = ()
    """The rounds of the session after this one; each waits for the answer before it (closed loop)."""

    def turns(self) -> Iterator[tuple[int, int, int]]:
        """Yield (history, prompt, output) in tokens of every round, the first one included."""
        yield 0, self.isl_tokens, self.osl_tokens
        so_far = self.isl_tokens + self.osl_tokens
        for later in self.rounds:
            history = later.history(so_far)
            yield history, history + later.new_tokens, later.osl_tokens
            so_far = history + later.new_tokens + later.osl_tokens


def is_number(value: float | None) -> TypeGuard[float]:
    """Tell whether `value` is there and finite. Metrics of real hosts are NaN or missing as a matter of course."""
    return value is not None and math.isfinite(value)
