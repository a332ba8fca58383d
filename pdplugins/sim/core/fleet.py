"""The workers: which there are, what they do now, and how they come, change role and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import Any

from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Pool, Role
from pdplugins.sim.core.clock import Events, seconds, ticks
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.kv import CachedBlocks, KvCache
from pdplugins.sim.core.links import Port
from pdplugins.sim.core.steps import StepTimes
from pdplugins.sim.core.views import LiveView

MANY_TOKENS = 1_000_000
"""Length of a transfer long enough to read its rate from."""


class Life(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Finishes what was placed on it."""
    FLIPPING = "flipping"
    """Drained, and changes its role."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one worker."""

    perf: PerfModel
    tp: int
    kv_tokens: int | None = None
    """Tokens of KV cache; the profile's own when None."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker."""

    engine: Engine
    view: LiveView
    hardware: Hardware
    gpus: tuple[int, ...]
    started: int
    life: Life = Life.STARTING
    ended: int | None = None
    becomes: Role | None = None
    """Role that it takes when it has drained."""
    open: int = 0
    """Requests that were placed on it and have not left it yet."""
    gone: bool = False
    draining: bool = False
    watched: bool = False
    """Whether a timer runs for the requests that wait for room on it."""


class Fleet:
    """All workers of one simulation.

    :param gpu_budget: GPUs that workers may hold together, draining ones included.
    :param timing: seconds to start a worker, and to change the role of a drained one.
    :param block_tokens: tokens of one prefix block.
    :param build: makes the engine of a worker.
    """

    def __init__(
        self,
        events: Events,
        hardware: dict[Role, Hardware],
        gpu_budget: int,
        timing: tuple[float, float],
        block_tokens: int,
        build: Callable[[LiveView, StepTimes, KvCache, Port], Any],
    ) -> None:
        startup_s, flip_s = timing
        self._events = events
        self._hardware = hardware
        self._gpu_budget = gpu_budget
        self._startup = ticks(startup_s)
        self._flip = ticks(flip_s)
        self._block_tokens = block_tokens
        self._build = build
        self.changed: Callable[[], None] | None = None
        """Called when workers come or go."""
        self._times: dict[tuple[int, int], StepTimes] = {}
        self._named = dict.fromkeys(Role, 0)
        self._free_gpus: list[int] = []
        self._gpus = 0
        self._waiting: list[Role] = []
        """Workers that are wanted and wait for GPUs, in the order in which they were wanted."""
        self.workers: dict[str, Worker] = {}
        """Those that are not gone, by name."""
        self.gone: list[Worker] = []
        self.alive: dict[str, Worker] = {}
        """Those that take new work, by name."""
        self.ready: tuple[LiveView, ...] = ()
        """The workers that take new work, as routers see them; a new tuple after every change."""

    def want(self, role: Role) -> None:
        """Start one more worker, as soon as there are GPUs for it and for those that were wanted before."""
        self._waiting.append(role)
        self._start_waiting()

    def forgo(self, role: Role) -> bool:
        """Want one worker less, of those that wait for GPUs. False when none does."""
        places = [place for place, wanted in enumerate(self._waiting) if wanted is role]
        if places:
            del self._waiting[places[-1]]
            self._start_waiting()
        return bool(places)

    def _start_waiting(self) -> None:
        waiting = self._waiting
        while waiting and self._gpus - len(self._free_gpus) + self.tp(waiting[0]) <= self._gpu_budget:
            self.start(waiting.pop(0))

    def start(self, role: Role, hardware: Hardware | None = None, *, at_once: bool = False) -> Worker:
        """Start a worker, whatever the budget; it serves when its start-up time has passed."""
        hardware = hardware or self._hardware[role]
        name = f"{role[0]}{self._named[role]}"
        self._named[role] += 1
        perf, tp = hardware.perf, hardware.tp
        capacity = perf.kv_capacity_tokens(tp) if hardware.kv_tokens is None else hardware.kv_tokens
        times = self._times.setdefault((id(perf), tp), StepTimes(perf, tp))
        latency_s = perf.transfer_s(0)
        token_s = (perf.transfer_s(MANY_TOKENS) - latency_s) / MANY_TOKENS
        kv = KvCache(capacity, self._block_tokens)
        view = LiveView(name, role, tp, capacity, CachedBlocks(kv))
        engine = self._build(view, times, kv, Port(1 / max(token_s, 1e-15), latency_s))
        view.watch(engine)
        gpus = tuple(self._take_gpu() for _ in range(tp))
        worker = self.workers[name] = Worker(engine, view, hardware, gpus, self._events.now)
        if at_once or not self._startup:
            self._serve(worker)
        else:
            self._events.call_at(self._events.now + self._startup, self._serve, worker)
        return worker

    def drain(self, worker: Worker, becomes: Role | None = None) -> None:
        """Give `worker` no new work; when it has none left it goes, or comes back in the role that it `becomes`."""
        if worker.life is Life.STARTING:
            self._end(worker)
            return
        worker.life, worker.becomes, worker.draining = Life.DRAINING, becomes, True
        self._publish()
        self.look(worker)

    def look(self, worker: Worker) -> None:
        """Let a draining worker go if it has nothing left to do."""
        if worker.life is not Life.DRAINING or worker.open:
            return
        if worker.becomes is None:
            self._end(worker)
            return
        worker.life = Life.FLIPPING
        self._events.call_at(self._events.now + self._flip, self._serve, worker)

    def relabel(self, worker: Worker, role: Role) -> None:
        """Change a worker's role at once, as engines allow that serve both phases."""
        worker.view.role = role
        self._publish()

    def kill(self, worker: Worker) -> None:
        """Take a worker away at once."""
        self._end(worker)

    def of(self, role: Role, *lives: Life) -> list[Worker]:
        """Return the workers of `role` in any of `lives`, oldest first. One that flips counts for its next role."""
        return [worker for worker in self.workers.values() if worker.life in lives and _role(worker) is role]

    def coming(self, role: Role) -> int:
        """Return how many workers of `role` there will be: those that serve, that start, and that wait for GPUs."""
        return len(self.of(role, Life.READY, Life.STARTING, Life.FLIPPING)) + self._waiting.count(role)

    def pool(self, role: Role) -> Pool:
        """Return what a planner sees of `role`. What waits for GPUs is starting: it need not be asked for again."""
        ready = self.of(role, Life.READY)
        return Pool(
            ready=len(ready),
            starting=self.coming(role) - len(ready),
            draining=len([w for w in self.workers.values() if w.life is Life.DRAINING and w.view.role is role]),
            loads=tuple(worker.view.load.frozen() for worker in ready),
        )

    def tp(self, role: Role) -> int:
        """Return the GPUs of a worker that is started for `role`."""
        return self._hardware[role].tp

    @property
    def preemptions(self) -> int:
        """How often a request lost its KV cache to make room."""
        return sum(worker.engine.preemptions for worker in (*self.workers.values(), *self.gone))

    def gpu_seconds(self, now: int) -> float:
        """Return GPU-seconds held by all workers so far, from their start to their end."""
        everyone = (*self.workers.values(), *self.gone)
        return sum(
            len(worker.gpus) * seconds((now if worker.ended is None else worker.ended) - worker.started)
            for worker in everyone
        )

    def _serve(self, worker: Worker) -> None:
        if worker.life is Life.GONE:
            return
        worker.life, worker.draining = Life.READY, False
        if worker.becomes is not None:
            worker.view.role, worker.becomes = worker.becomes, None
        self._publish()

    def _end(self, worker: Worker) -> None:
        worker.life, worker.ended, worker.gone = Life.GONE, self._events.now, True
        del self.workers[worker.view.id]
        self.gone.append(worker)
        for gpu in worker.gpus:
            heappush(self._free_gpus, gpu)
        self._start_waiting()
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


def _role(worker: Worker) -> Role:
    return worker.becomes if worker.becomes is not None and worker.life is Life.FLIPPING else worker.view.role
