"""The simulated workers. They start, change role and stop as `pdplugins.runtime.roles` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

from pdplugins.contracts.workers import Pool, Role, WorkerLoad
from pdplugins.results import Scaling
from pdplugins.runtime.roles import RoleAuthority
from pdplugins.runtime.roster import Life, Roster
from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.kv import CachedBlocks, KvCache
from pdplugins.sim.core.links import Port
from pdplugins.sim.core.steps import StepTimes
from pdplugins.sim.core.views import LiveView
from pdplugins.sim.core.worker import Hardware, Worker

MANY_TOKENS = 1_000_000
"""Tokens of a transfer that is long enough to derive its rate from."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How workers start and change their roles. Times are in seconds."""

    startup_s: float = 0.0
    flip_s: float = 0.0
    """Time that a drained worker needs to change its role."""
    label: bool = False
    """Whether roles are labels that change at once."""
    any_role: bool = False
    """Whether a role may have no worker, because workers of the other role can serve its phase."""
    grows: bool = False
    """Whether a planner may start workers."""
    drain_deadline_s: float | None = None
    """Time within which a worker that changes its role must drain; None for no limit."""


class Fleet:
    """All workers of one simulation. It carries out what the role authority decides.

    :param gpu_budget: GPUs that workers may hold together, draining ones included.
    :param engine: settings of the engine of every worker.
    :param build: makes the engine of a worker.
    """

    def __init__(
        self,
        events: Events,
        hardware: dict[Role, Hardware],
        gpu_budget: int,
        settings: FleetSettings,
        engine: EngineSettings,
        build: Callable[[LiveView, StepTimes, KvCache, Port], Any],
    ) -> None:
        self._events = events
        self._hardware = hardware
        self._startup = ticks(settings.startup_s)
        self._flip = ticks(settings.flip_s)
        self._deadline = None if settings.drain_deadline_s is None else ticks(settings.drain_deadline_s)
        self._grows = settings.grows
        self._block_tokens = engine.block_tokens
        self._mixed = engine.mixed_step_scale, engine.mixed_steps
        self._build = build
        gpus = {role: own.tp for role, own in hardware.items()}
        self.roster = Roster(gpus, gpu_budget, any_role=settings.any_role or settings.label)
        self.roles = RoleAuthority(
            self, self.roster, changer=self, label=settings.label, drain_s=settings.drain_deadline_s
        )
        self.changed: Callable[[], None] | None = None
        """Called when workers come or go."""
        self.changes: list[Scaling] = []
        """Changes of role that were rolled back."""
        self._times: dict[tuple[int, int], StepTimes] = {}
        self._named = dict.fromkeys(Role, 0)
        self._free_gpus: list[int] = []
        self._gpus = 0
        self.workers: dict[str, Worker] = {}
        """Workers that have not stopped or died, by name."""
        self.gone: list[Worker] = []
        self.alive: dict[str, Worker] = {}
        """Workers that take new work, by name."""
        self.ready: tuple[LiveView, ...] = ()
        """The workers that take new work, as routers see them; a new tuple after every change."""

    def populate(self, wanted: Iterable[tuple[Role, Hardware | None]]) -> None:
        """Add workers that serve at once, as those do that are there before the run. No hardware: that of the role."""
        for role, hardware in wanted:
            self._admit(self._add(role, hardware or self._hardware[role]))
        self._publish()

    # --- what the role authority asks for: see `pdplugins.runtime.roles` ---------------------------------------------

    def start(self, role: Role) -> bool:
        """Start a worker without a check of the GPU budget. It serves once its start-up time has passed."""
        worker = self._add(role, self._hardware[role])
        if self._startup:
            self._events.call_at(self._events.now + self._startup, self._serve, worker)
        else:
            self._serve(worker)
        return True

    def stop(self, worker: str) -> None:
        """Stop a worker that has no requests."""
        self._end(self.workers[worker])

    def drain(self, worker: str) -> None:
        """Give a worker no new work, and report when it has no requests left."""
        draining = self.workers[worker]
        draining.draining = True
        if self._deadline is not None:
            self._events.call_at(self._events.now + self._deadline, self._tick)
        self._publish()
        self.look(draining)

    def overdue(self, worker: str) -> None:
        """Do nothing: a worker that is to stop may drain as long as its requests need."""

    def work(self, worker: str) -> float:
        """Return how many requests a worker has."""
        return self.workers[worker].open

    def relabel(self, worker: str, role: Role) -> None:
        """Change a worker's role at once, which works for engines that serve both phases."""
        self.workers[worker].view.role = role
        self._publish()

    def change(self, worker: str, role: Role) -> None:
        """Change the role of a drained worker. It serves again after the time that a change takes."""
        self._events.call_at(self._events.now + self._flip, self._serve, self.workers[worker])

    def undrain(self, worker: str) -> None:
        """Give a worker new work of its old role again."""
        self.workers[worker].draining = False
        prefill, decode = self.roster.coming(Role.PREFILL), self.roster.coming(Role.DECODE)
        reason = f"{worker} did not drain in time"
        self.changes.append(Scaling(at_s=self.now_s, prefill=prefill, decode=decode, reason=reason))
        self._publish()

    # --- what happens ----------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual time in seconds."""
        return seconds(self._events.now)

    @property
    def lost(self) -> bool:
        """Whether there is no worker, and nobody to start one."""
        return not (self.workers or self._grows)

    def look(self, worker: Worker) -> None:
        """Tell the role authority if a draining worker has no requests left."""
        if worker.life is Life.DRAINING and not worker.open:
            self.roles.drained(worker.view.id)

    def kill(self, worker: Worker) -> None:
        """Take a worker away at once."""
        self._end(worker)

    def pool(self, role: Role) -> Pool:
        """Return what a planner sees of `role`. Workers that wait for GPUs count as starting."""
        ready = (worker for worker in self.alive.values() if worker.view.role is role)
        return replace(self.roster.pool(role), loads=tuple(_planned_load(worker) for worker in ready))

    @property
    def preemptions(self) -> int:
        """How often a request lost its KV cache so that others could grow."""
        return sum(worker.engine.preemptions for worker in (*self.workers.values(), *self.gone))

    def gpu_seconds(self, now: int) -> float:
        """Return GPU-seconds held by all workers so far, from their start to their end."""
        everyone = (*self.workers.values(), *self.gone)
        return sum(
            len(worker.gpus) * seconds((now if worker.ended is None else worker.ended) - worker.started)
            for worker in everyone
        )

    def _add(self, role: Role, hardware: Hardware) -> Worker:
        """Take in a new worker, which starts."""
        name = f"{role[0]}{self._named[role]}"
        self._named[role] += 1
        perf, tp = hardware.perf, hardware.tp
        capacity = perf.kv_capacity_tokens(tp) if hardware.kv_tokens is None else hardware.kv_tokens
        times = self._times.setdefault((id(perf), tp), StepTimes(perf, tp, *self._mixed))
        latency_s = perf.transfer_s(0)
        token_s = (perf.transfer_s(MANY_TOKENS) - latency_s) / MANY_TOKENS
        kv = KvCache(capacity, self._block_tokens)
        view = LiveView(name, role, tp, capacity, CachedBlocks(kv))
        engine = self._build(view, times, kv, Port(1 / max(token_s, 1e-15), latency_s))
        view.watch(engine)
        gpus = tuple(self._take_gpu() for _ in range(tp))
        member = self.roles.add(name, role, tp)
        worker = self.workers[name] = Worker(engine, view, hardware, gpus, self._events.now, member)
        return worker

    def _tick(self, _: object) -> None:
        self.roles.tick(self.now_s)

    def _serve(self, worker: Worker) -> None:
        if not worker.gone:
            self._admit(worker)
            self._publish()

    def _admit(self, worker: Worker) -> None:
        """Let a worker take new work as soon as it is published."""
        self.roles.ready(worker.view.id)
        worker.draining, worker.view.role = False, worker.member.role

    def _end(self, worker: Worker) -> None:
        worker.ended, worker.gone = self._events.now, True
        del self.workers[worker.view.id]
        self.gone.append(worker)
        for gpu in worker.gpus:
            heappush(self._free_gpus, gpu)
        self.roles.gone(worker.view.id)
        self._publish()

    def _publish(self) -> None:
        self.alive = {name: worker for name, worker in self.workers.items() if worker.life is Life.READY}
        self.ready = tuple(worker.view for worker in self.alive.values())
        if self.changed is not None:
            self.changed()

    def _take_gpu(self) -> int:
        if self._free_gpus:
            return heappop(self._free_gpus)
        self._gpus += 1
        return self._gpus - 1


def _planned_load(worker: Worker) -> WorkerLoad:
    """Return the load of a worker, with the prompts that are computed and wait for a place here, as Dynamo reports."""
    load = worker.view.load.frozen()
    tokens = worker.engine.awaited()
    return replace(
        load, queued_requests=load.queued_requests + len(tokens), queued_tokens=load.queued_tokens + sum(tokens)
    )
