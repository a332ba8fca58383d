"""Policies that follow the script of a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.testing.views import Worker, snapshot


class ScriptSettings(BaseModel, extra="forbid"):
    """What a config file may say under ``planner:``, beside the name."""

    per_worker: float = 10.0
    interval_s: float = 5.0
    fail_at: int = -1


@dataclass
class ScriptedPlanner:
    """One prefill worker per `per_worker` requests/s, half as many for decode; raises at call `fail_at`."""

    settings: ScriptSettings
    deployment: Deployment
    calls: list[PlannerView] = field(default_factory=list)

    @property
    def interval_s(self) -> float:
        """Seconds between two calls."""
        return self.settings.interval_s

    def plan(self, view: PlannerView) -> ScalePlan:
        """Note what was seen and answer by the rate."""
        self.calls.append(view)
        if len(self.calls) == self.settings.fail_at:
            raise RuntimeError("the forecaster\nfell over")
        rate = view.traffic.rate if view.traffic else 0.0
        prefill = 1 + int(rate / self.settings.per_worker)
        return ScalePlan(prefill, 1 + prefill // 2, f"{rate:.1f} requests/s", {"forecast_rate": rate})


class PoolsPlanner:
    """Wants the pools of the last entry of its script that has begun.

    :param script: (seconds, prefill workers, decode workers), the first one from the start.
    """

    def __init__(self, *script: tuple[float, int, int], interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._script = script

    def plan(self, view: PlannerView) -> ScalePlan:
        """Answer by the clock."""
        _, prefill, decode = max(entry for entry in self._script if entry[0] <= view.now_s)
        return ScalePlan(prefill, decode, "script")


class EagerPlanner:
    """Wants to be asked when `requests` have come since it was last asked, until it has planned once.

    :param requests: how many must come.
    :param look_s: seconds between two looks.
    """

    def __init__(self, requests: float, *, look_s: float = 0.5, interval_s: float = 5.0) -> None:
        self.interval_s = interval_s
        self.views: list[PlannerView] = []
        self._requests, self._look_s = requests, look_s

    def wait_s(self, view: PlannerView) -> float | None:
        """See :class:`pdplugins.contracts.planner.Eager`."""
        if self.views:
            return None
        come = view.traffic.requests if view.traffic else 0.0
        return 0.0 if come >= self._requests else self._look_s

    def plan(self, view: PlannerView) -> ScalePlan:
        """Note what was seen, and want two workers of each role."""
        self.views.append(view)
        return ScalePlan(2, 2, "eager")


class FixedRouter:
    """Places every request the same.

    :param second: None leaves it open: the request then stays on the first worker.
    :param split: the length of the prompt where it is None.
    """

    def __init__(self, first: str, second: str | None, split: int | None = None) -> None:
        self.first, self.second, self.split = first, second, split

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        return Placement(self.first, self.second, request.prompt_tokens if self.split is None else self.split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Leave a request where it is."""
        return placement if placement.second else Placement(placement.first, placement.first, placement.split)


@dataclass(frozen=True)
class Asked:
    """One question of a host to a router, and what the workers looked like then."""

    request: Request
    workers: tuple[WorkerView, ...]
    """The very tuple that the host passed."""
    looked: tuple[Worker, ...]
    """Copies of the workers."""


class RecordingRouter:
    """Places requests in turn over the workers of each role, and keeps what the host passed to it."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.ended: list[tuple[Request, Outcome]] = []

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request on the next worker of each role; on any where a role has none."""
        self.asked.append(Asked(request, workers, tuple(snapshot(worker) for worker in workers)))
        first, second = ([worker.id for worker in workers if worker.role is role] for role in Role)
        everyone, turn = [worker.id for worker in workers], len(self.asked)
        names = [(pool or everyone)[turn % len(pool or everyone)] for pool in (first, second)]
        return Placement(names[0], names[1], request.prompt_tokens, "in turn")

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Choose any second worker. It is asked only where the host has lost the one that it named."""
        return Placement(placement.first, workers[0].id, placement.split)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Note how a request ended."""
        self.ended.append((request, outcome))
