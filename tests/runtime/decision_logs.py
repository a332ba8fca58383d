"""A decision log of every kind of policy, and what `pdplugins explain` tells of a log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

from pdplugins import config as configs
from pdplugins.policies.stock.routers import LeastLoaded, RouterSettings
from pdplugins.runtime import commands
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.batching import SafeBatchScheduler
from pdplugins.runtime.flow import SafeFlow
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import build_policies
from pdplugins.runtime.power import SafePowerController
from pdplugins.runtime.router import SafeRouter
from pdplugins.types import (
    BatchPlan,
    BatchView,
    FlowDecision,
    Go,
    GpuView,
    Hold,
    PlannerView,
    QueuedPrefill,
    Request,
    Role,
    ScalePlan,
    Waiting,
    WorkerLoad,
)

See = Callable[..., PlannerView]


def invoked(*arguments: str) -> Result:
    """Run `pdplugins explain` in this process."""
    app = typer.Typer()
    app.callback()(lambda: None)  # so that the only command keeps its name
    commands.pd_register_commands(app)
    return CliRunner().invoke(app, ["explain", *arguments])


def explained(*arguments: str) -> tuple[int, str]:
    """Return the exit code of `pdplugins explain`, and what it prints."""
    done = invoked(*arguments)
    return done.exit_code, done.output


class InOrder:
    """Lets requests go on in the order of arrival."""

    def __init__(self) -> None:
        self.waiting: list[str] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.waiting.append(waiting.request.id)

    def next(self, workers: object, now_s: float) -> FlowDecision:
        return Go(self.waiting.pop(0)) if self.waiting else Hold()

    def on_left(self, request_id: str) -> None:
        self.waiting.remove(request_id)


class Cautious:
    """Prefills what waits, up to 512 tokens of each."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        return BatchPlan({item.request.id: min(item.remaining_tokens, 512) for item in view.queue}, 0.0, "cautious")

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        pass


class SimpleWorker:
    """A worker with a queue."""

    tp = 1
    kv_capacity_tokens = 50_000
    free_kv_tokens = 20_000
    capabilities = None
    cached_blocks: frozenset[int] = frozenset()

    def __init__(self, name: str, role: Role, queued: float = 0.0) -> None:
        self.id = name
        self.role = role
        self.load = WorkerLoad(name, queued, 100 * queued)


def mixed_log(path: Path, config_data: dict[str, Any], see: See) -> None:
    """Write the log of one process with a policy of each kind."""
    config = configs.parse(config_data | {"power": {"name": "rapid", "budget_w": 8000}, "decision_log": {"sample": 1}})
    deployment = build_deployment(config)
    journal = build_journal(config, deployment, initial=ScalePlan(1, 1, "workers at start"), decision_log=path)
    planner = build_safe_planner(config, journal=journal)
    power = build_policies(config, deployment).power()
    assert power is not None
    controller = SafePowerController(power, deployment, budget_w=8000.0, journal=journal)
    gpus = tuple(GpuView(n, Role.PREFILL if n < 4 else Role.DECODE, 500.0, 400.0) for n in range(8))
    request = Request("r7", 101.0, 1200, session="alice", bound_worker="d1")
    router = SafeRouter(LeastLoaded(RouterSettings.model_validate({}), deployment), deployment, journal=journal)
    flow = SafeFlow(InOrder(), most_waiting=1, journal=journal)
    scheduler = SafeBatchScheduler(Cautious(), journal=journal)
    workers = (
        SimpleWorker("p0", Role.PREFILL, 3.0),
        SimpleWorker("p1", Role.PREFILL, 0.0),
        SimpleWorker("d1", Role.DECODE),
    )
    for tick, rate in enumerate([5, 25, 25]):
        planner.plan(see(100.0 + 5 * tick, rate))
        controller.control(gpus, see(100.0 + 5 * tick, rate))
    flow.arrived(Waiting(request, 101.0, 103.0), 101.0)
    flow.arrived(Waiting(Request("r8", 101.5, 50), 101.5, 103.5), 101.5)
    flow.next(workers, 102.0, 0)
    router.on_arrival(request, workers, 102.0, {"p0", "p1", "d1"})
    scheduler.next_batch(BatchView((QueuedPrefill(request, 1200, 102.0),), 2, 4000), 102.5)
    journal.close()
