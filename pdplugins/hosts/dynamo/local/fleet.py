"""Keeps as many workers alive as the planner wants: starts, drains, replaces. Knows processes, not Dynamo."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.local.metrics import FleetMetrics
from pdplugins.processes.process import Process

log = logging.getLogger("pdplugins.local.fleet")


class Phase(StrEnum):
    """What a worker is doing."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Event(StrEnum):
    """What happened to a worker; each is logged and counted."""

    STARTED = "started"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DIED = "died"
    """It ended without having been asked to."""
    NEVER_READY = "never_ready"
    """It ran but did not serve within the time limit, and was killed."""
    NOT_DRAINED = "not_drained"
    """It was still busy after the time limit of a drain, and was killed."""
    NOT_STARTED = "not_started"
    """The machine refused to start the process."""
    NO_GPU = "no_gpu"
    """It could not start because the workers that are left hold the whole GPU budget."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient the fleet is, in seconds."""

    ready_s: float = 60.0
    """From a worker's start until it must serve."""
    drain_s: float = 300.0
    """From the order to stop until a worker must have finished its requests."""
    retry_s: float = 1.0
    """Until the next start after a failed one; doubled with each failure."""
    retry_most_s: float = 30.0


@dataclass(slots=True)
class Worker:
    """One worker process."""

    role: Role
    process: Process
    since_s: float
    phase: Phase = Phase.STARTING
    instance: str | None = None
    """Its id in Dynamo's discovery, once it is registered."""
    failed: Event | None = None
    """Why the fleet killed it."""

    @property
    def name(self) -> str:
        """Its name in logs, status and discovery."""
        return self.process.name


class Discovery(Protocol):
    """What the fleet needs of `Registrations`."""

    def serving(self) -> dict[str, str]:
        """Return the instance id of every worker that takes requests, by the worker's name."""
        ...

    def remove(self, instance: str) -> None:
        """Take away what a worker that has died left behind."""
        ...


Launch = Callable[[Role, str, Callable[[Process], None]], Process]
"""Starts the process of a worker: role, name, what to call when it ends. Raises OSError when the machine refuses."""


class Fleet:
    """The worker processes of one stack. Everything runs on the event loop's thread and nothing raises.

    :param gpus: GPUs of one worker of each role.
    :param gpu_budget: GPUs that all worker processes, draining ones included, may hold at any instant.
    """

    def __init__(
        self,
        launch: Launch,
        discovery: Discovery,
        *,
        gpus: Mapping[Role, int],
        gpu_budget: int,
        limits: Limits = Limits(),
        metrics: FleetMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch = launch
        self._discovery = discovery
        self._gpus = gpus
        self._budget = gpu_budget
        self._limits = limits
        self._metrics = metrics or FleetMetrics.unseen()
        self._clock = clock
        self._wanted = dict.fromkeys(Role, 0)
        self._workers: list[Worker] = []
        self._failures = dict.fromkeys(Role, 0)
        self._retry_at_s = dict.fromkeys(Role, 0.0)
        self._short_of_gpus = dict.fromkeys(Role, False)
        self._started = dict.fromkeys(Role, 0)
        self._gpu_s = 0.0
        self._counted_s = clock()
        self._closed = False

    # --- what is there -------------------------------------------------------------------------------------------

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Every worker whose process runs, oldest first."""
        return tuple(self._workers)

    def count(self, role: Role, phase: Phase) -> int:
        """Return how many workers of `role` are in `phase`."""
        return sum(worker.role is role and worker.phase is phase for worker in self._workers)

    def wanted(self, role: Role) -> int:
        """Return how many workers of `role` there should be."""
        return self._wanted[role]

    @property
    def settled(self) -> bool:
        """Whether every wanted worker serves and no other runs."""
        return all(
            self.count(role, Phase.READY) == self._wanted[role] == sum(w.role is role for w in self._workers)
            for role in Role
        )

    @property
    def gpus_held(self) -> int:
        """GPUs that worker processes hold now."""
        return sum(self._gpus[worker.role] for worker in self._workers)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours held so far, from the start of each process to its end."""
        self._count_gpus()
        return self._gpu_s / 3600

    # --- what should be ------------------------------------------------------------------------------------------

    def want(self, role: Role, count: int) -> None:
        """Set how many workers of `role` there should be, at least one."""
        self._wanted[role] = max(1, count)
        self.step()

    def step(self) -> None:
        """Bring what is there one step closer to what should be. Call it a few times per second."""
        if self._closed:
            return
        self._observe()
        for role in Role:
            self._drain_surplus(role)
        for role in Role:
            self._start_missing(role)
        for role in Role:
            for phase in Phase:
                self._metrics.workers(role, phase, self.count(role, phase))

    def close(self) -> tuple[Process, ...]:
        """Start and replace nothing from now on; returns the processes that are still to be stopped."""
        self._closed = True
        return tuple(worker.process for worker in self._workers)

    def _observe(self) -> None:
        serving, now_s = self._discovery.serving(), self._clock()
        for worker in self._workers:
            age_s = now_s - worker.since_s
            if worker.phase is Phase.STARTING and worker.name in serving:
                worker.phase, worker.instance = Phase.READY, serving[worker.name]
                self._failures[worker.role] = 0
                self._tell(Event.READY, worker.role, f"{worker.name} serves after {age_s:.1f} s")
            elif worker.phase is Phase.STARTING and age_s > self._limits.ready_s:
                self._give_up(worker, Event.NEVER_READY, f"does not serve after {age_s:.0f} s")
            elif worker.phase is Phase.DRAINING and age_s > self._limits.drain_s:
                self._give_up(worker, Event.NOT_DRAINED, f"is still busy {age_s:.0f} s after the order to stop")

    def _give_up(self, worker: Worker, event: Event, why: str) -> None:
        if worker.failed is None:
            worker.failed = event
            self._tell(event, worker.role, f"{worker.name} {why}; killing it; its log is {worker.process.log}")
            worker.process.kill()

    def _drain_surplus(self, role: Role) -> None:
        active = [w for w in reversed(self._workers) if w.role is role and w.phase is not Phase.DRAINING]
        active.sort(key=lambda worker: worker.phase is Phase.READY)  # those that start first, then the youngest
        for worker in active[: max(0, len(active) - self._wanted[role])]:
            worker.phase, worker.since_s = Phase.DRAINING, self._clock()
            self._tell(Event.DRAINING, role, f"{worker.name} finishes its requests and stops")
            worker.process.terminate()

    def _start_missing(self, role: Role) -> None:
        active = self.count(role, Phase.STARTING) + self.count(role, Phase.READY)
        for _ in range(self._wanted[role] - active):
            if self._clock() < self._retry_at_s[role] or not self._room(role):
                return
            self._start(role)

    def _room(self, role: Role) -> bool:
        short = self.gpus_held + self._gpus[role] > self._budget
        if short and not self._short_of_gpus[role]:
            why = f"{self.gpus_held} of {self._budget} GPUs are held, draining workers included; waiting for one"
            self._tell(Event.NO_GPU, role, why)
        self._short_of_gpus[role] = short
        return not short

    def _start(self, role: Role) -> None:
        name = f"{role}-{self._started[role] + 1}"
        self._count_gpus()
        try:
            process = self._launch(role, name, self._ended)
        except OSError as error:
            self._back_off(role)
            self._tell(Event.NOT_STARTED, role, f"{name}: the machine refused to start it ({error.strerror})")
            return
        self._started[role] += 1
        self._workers.append(Worker(role, process, self._clock()))
        self._tell(Event.STARTED, role, f"{name} is process {process.pid}")

    def _ended(self, process: Process) -> None:
        self._count_gpus()
        worker = next(worker for worker in self._workers if worker.process is process)
        self._workers.remove(worker)
        # Also after a drain: what a worker could not take back itself would draw requests to a closed port.
        instance = worker.instance or self._discovery.serving().get(worker.name)
        if instance is not None:
            self._discovery.remove(instance)
        if self._closed:
            return
        if worker.phase is Phase.DRAINING:
            self._tell(Event.STOPPED, worker.role, f"{worker.name} {process.fate}")
        else:
            self._lost(worker)
        self.step()

    def _lost(self, worker: Worker) -> None:
        if worker.phase is Phase.STARTING:
            self._back_off(worker.role)
        if worker.failed is None:
            words = worker.process.last_words() if worker.phase is Phase.STARTING else ""
            detail = f" ({words})" if words else ""
            self._tell(Event.DIED, worker.role, f"{worker.name} {worker.process.fate}{detail}; replacing it")

    def _back_off(self, role: Role) -> None:
        wait_s = min(self._limits.retry_most_s, self._limits.retry_s * 2 ** self._failures[role])
        self._failures[role] += 1
        self._retry_at_s[role] = self._clock() + wait_s

    def _count_gpus(self) -> None:
        now_s = self._clock()
        spent_s = self.gpus_held * (now_s - self._counted_s)
        self._counted_s = now_s
        self._gpu_s += spent_s
        self._metrics.gpu_seconds(spent_s)

    def _tell(self, event: Event, role: Role, what: str) -> None:
        self._metrics.event(role, event)
        bad = event in {Event.DIED, Event.NEVER_READY, Event.NOT_DRAINED, Event.NOT_STARTED, Event.NO_GPU}
        log.log(logging.WARNING if bad else logging.INFO, "%s worker %s: %s", role, event, what)
