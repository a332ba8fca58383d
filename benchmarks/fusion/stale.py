"""Policies that see loads as they were a second ago: a plugin for the study of sensitivity."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass

from pdplugins import hookimpl
from pdplugins.contracts.bundle import Bundle
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Flow, FlowDecision, Waiting
from pdplugins.contracts.register import Register
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome, Placement
from pdplugins.contracts.workers import Capabilities, Role, WorkerLoad, WorkerView
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.plugin import build
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.registry import Plugin, default_registry

AGE_S = 1.0
EVERY_S = 0.1
"""Seconds between two reports."""
Workers = tuple[WorkerView, ...]


@dataclass(frozen=True, slots=True)
class OldLoad(WorkerLoad):
    """A load that does not change, and says when it was reported."""

    reported_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OldView:
    """A worker with the load of a past report. Its role, and what its cache holds, are those of now."""

    now: WorkerView
    load: OldLoad
    free_kv_tokens: int | None

    @property
    def id(self) -> str:
        return self.now.id

    @property
    def role(self) -> Role:
        return self.now.role

    @property
    def tp(self) -> int | None:
        return self.now.tp

    @property
    def kv_capacity_tokens(self) -> int:
        return self.now.kv_capacity_tokens

    @property
    def capabilities(self) -> Capabilities | None:
        return self.now.capabilities

    @property
    def cached_blocks(self) -> Container[int]:
        return self.now.cached_blocks


class Reports:
    """Keeps the reports of the last second."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Workers]] = deque()

    def of(self, workers: Workers, now_s: float) -> Workers:
        """Return the workers as the newest report of at least `AGE_S` ago shows them; the first one before that."""
        kept = self._kept
        if not kept or now_s - kept[-1][0] >= EVERY_S or {view.id for view in kept[-1][1]} != {it.id for it in workers}:
            kept.append((now_s, tuple(OldView(it, frozen(it, now_s), it.free_kv_tokens) for it in workers)))
        while len(kept) > 1 and kept[1][0] <= now_s - AGE_S:
            kept.popleft()
        return kept[0][1]


def frozen(worker: WorkerView, now_s: float) -> OldLoad:
    """Return the load of now, as a report of now."""
    names = WorkerLoad.__dataclass_fields__
    return OldLoad(**{name: getattr(worker.load, name) for name in names}, reported_s=now_s)


class OldRouter:
    """A router that sees old loads."""

    def __init__(self, router: object, reports: Reports) -> None:
        self._router = router
        self._reports = reports

    def on_arrival(self, request: Request, workers: Workers, now_s: float) -> Placement:
        """Place a request."""
        return self._router.on_arrival(request, self._reports.of(workers, now_s), now_s)  # type: ignore[attr-defined]

    def on_prefill_done(self, request: Request, placement: Placement, workers: Workers, now_s: float) -> Placement:
        """Bind the decode."""
        old = self._reports.of(workers, now_s)
        return self._router.on_prefill_done(request, placement, old, now_s)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._router, name)


class OldPlanningRouter(OldRouter):
    """A router that also plans ahead on old loads."""

    def plan_ahead(self, workers: Workers, now_s: float) -> None:
        """Solve the programme."""
        self._router.plan_ahead(self._reports.of(workers, now_s), now_s)  # type: ignore[attr-defined]


class OldFlow:
    """A flow policy that sees old loads."""

    def __init__(self, flow: Flow, reports: Reports) -> None:
        self._flow = flow
        self._reports = reports

    @property
    def signals(self) -> Mapping[str, float]:
        """Return those of the policy."""
        return self._flow.signals  # type: ignore[attr-defined]

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        """Take in a request."""
        self._flow.on_arrival(waiting, now_s)

    def next(self, workers: Workers, now_s: float) -> FlowDecision:
        """Decide on old loads."""
        return self._flow.next(self._reports.of(workers, now_s), now_s)

    def on_left(self, request_id: str) -> None:
        """Forget a request."""
        self._flow.on_left(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Tell how a request ended."""
        self._flow.on_ended(request, outcome)  # type: ignore[attr-defined]


def old_fusion(settings: FusionSettings, deployment: Deployment) -> Bundle:
    """Return fusion with old loads before the workers; engines know their own."""
    parts, reports = build(settings, deployment), Reports()
    router, flow = parts.router, parts.flow
    assert router is not None
    assert flow is not None
    return Bundle(
        router=lambda: OldPlanningRouter(router(), reports),  # type: ignore[arg-type, return-value]
        flow=lambda: OldFlow(flow(), reports),
        batch_scheduler=parts.batch_scheduler,
    )


@hookimpl
def pd_register_bundles(register: Register) -> None:
    """Add fusion with old loads."""
    register("old-fusion", old_fusion, FusionSettings)


@hookimpl
def pd_register_routers(register: Register) -> None:
    """Add the stock router with old loads."""
    register(
        "old-least-loaded",
        lambda settings, deployment: OldRouter(LeastLoaded(settings, deployment), Reports()),
        RouterSettings,
    )


def add() -> None:
    """Let configs of this process name these policies."""
    import stale  # noqa: PLC0415 - a plugin is a module

    if all(plugin.name != "stale" for plugin in default_registry().plugins()):
        default_registry().add(Plugin("stale", "benchmarks", "0"), stale)
