"""The worker processes: started, drained and replaced as the role authority says. Knows processes, not Dynamo."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan
from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.local.metrics import FleetMetrics
from pdplugins.processes.process import Process
from pdplugins.runtime.roles import RoleAuthority
from pdplugins.runtime.roster import Life, Member, Roster

log = logging.getLogger("pdplugins.local.fleet")

MOST_DOUBLED = 16
"""How often the pause after a failed start doubles at most: a float overflows where it goes on doubling."""
SHOWN = (Life.STARTING, Life.READY, Life.DRAINING)
"""Lives of worker processes; none changes its role."""


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
    HUNG = "hung"
    """It served, its process runs, and it has not said so for too long; it was killed."""
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
    silent_s: float = 5.0
    """How long a worker that serves may be missing from the discovery, which has waited for it before."""
    drain_s: float = 300.0
    """From the order to stop until a worker must have finished its requests."""
    retry_s: float = 1.0
    """Until the next start after a failed one; doubled with each failure."""
    retry_most_s: float = 30.0


@dataclass(slots=True)
class Worker:
    """One worker process."""

    member: Member
    """What the role authority knows of it."""
    process: Process
    since_s: float
    """When it was started."""
    instance: str | None = None
    """Its id in Dynamo's discovery, once it is registered."""
    seen_s: float = 0.0
    """When it was last registered."""
    failed: Event | None = None
    """Why the fleet killed it."""

    @property
    def name(self) -> str:
        """Its name in logs, status and discovery."""
        return self.process.name

    @property
    def role(self) -> Role:
        """The phase that it serves."""
        return self.member.role

    @property
    def life(self) -> Life:
        """Where it is in its life."""
        return self.member.life


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
    """The worker processes of one stack: the actuator of its role authority.

    Everything runs on the event loop's thread and nothing raises. A process keeps the role that it was started with.

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
        self._roster = Roster(gpus, gpu_budget)
        self._roles = RoleAuthority(self, self._roster, drain_s=limits.drain_s)
        self._limits = limits
        self._metrics = metrics or FleetMetrics.unseen()
        self._clock = clock
        self._wanted = dict.fromkeys(Role, 0)
        self._workers: dict[str, Worker] = {}
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
        return tuple(self._workers.values())

    def count(self, role: Role, life: Life) -> int:
        """Return how many workers of `role` are in that part of their life."""
        return len(self._roster.of(role, life))

    def wanted(self, role: Role) -> int:
        """Return how many workers of `role` there should be."""
        return self._wanted[role]

    @property
    def settled(self) -> bool:
        """Whether every wanted worker serves and no other runs."""
        return all(
            self.count(role, Life.READY) == self._wanted[role] == len(self._roster.of(role, *Life)) for role in Role
        )

    @property
    def gpus_held(self) -> int:
        """GPUs that worker processes hold now."""
        return self._roster.gpus_held

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
        plan = ScalePlan(self._wanted[Role.PREFILL], self._wanted[Role.DECODE], "as ordered")
        self._roles.propose_pools(plan, Kind.PLANNER, self._clock())
        self._roles.tick(self._clock())
        for role in Role:
            self._note_shortage(role)
            for life in SHOWN:
                self._metrics.workers(role, life, self.count(role, life))

    def close(self) -> tuple[Process, ...]:
        """Start and replace nothing from now on; returns the processes that are still to be stopped."""
        self._closed = True
        return tuple(worker.process for worker in self._workers.values())

    # --- what the role authority asks for: see `pdplugins.runtime.roles` ---------------------------------------------

    def start(self, role: Role) -> bool:
        """Start the process of a worker. False when the machine refuses, and for a while after that."""
        if self._closed or self._clock() < self._retry_at_s[role]:
            return False
        name = f"{role}-{self._started[role] + 1}"
        self._count_gpus()
        try:
            process = self._launch(role, name, self._ended)
        except OSError as error:
            self._back_off(role)
            self._tell(Event.NOT_STARTED, role, f"{name}: the machine refused to start it ({error.strerror})")
            return False
        self._started[role] += 1
        member = self._roles.add(name, role, self._roster.gpus[role])
        self._workers[name] = Worker(member, process, self._clock())
        self._tell(Event.STARTED, role, f"{name} is process {process.pid}")
        return True

    def drain(self, worker: str) -> None:
        """Ask a process to finish its requests and to end."""
        role, process = self._workers[worker].role, self._workers[worker].process
        self._tell(Event.DRAINING, role, f"{worker} finishes its requests and stops")
        process.terminate()

    def stop(self, worker: str) -> None:
        """Ask a process to end that does not serve yet."""
        self.drain(worker)

    def overdue(self, worker: str) -> None:
        """Kill a process that is still busy; its requests go on elsewhere."""
        why = f"is still busy {self._limits.drain_s:.0f} s after the order to stop"
        self._give_up(self._workers[worker], Event.NOT_DRAINED, why)

    def work(self, worker: str) -> float:
        """Return a number that is lower the later the worker was started: the youngest goes first."""
        return -list(self._workers).index(worker)

    # --- what happens ----------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        serving, now_s = self._discovery.serving(), self._clock()
        for worker in self._workers.values():
            if worker.name in serving:
                worker.seen_s = now_s
            if worker.life is Life.STARTING:
                self._observe_start(worker, serving.get(worker.name), now_s - worker.since_s)
            elif worker.life is Life.READY and now_s - worker.seen_s > self._limits.silent_s:
                self._give_up(worker, Event.HUNG, "no longer says that it serves, though its process runs")

    def _observe_start(self, worker: Worker, instance: str | None, age_s: float) -> None:
        if instance is not None:
            worker.instance = instance
            self._failures[worker.role] = 0
            self._roles.ready(worker.name)
            self._tell(Event.READY, worker.role, f"{worker.name} serves after {age_s:.1f} s")
        elif age_s > self._limits.ready_s:
            self._give_up(worker, Event.NEVER_READY, f"does not serve after {age_s:.0f} s")

    def _give_up(self, worker: Worker, event: Event, why: str) -> None:
        if worker.failed is None:
            worker.failed = event
            self._tell(event, worker.role, f"{worker.name} {why}; killing it; its log is {worker.process.log}")
            worker.process.kill()

    def _note_shortage(self, role: Role) -> None:
        short = role in self._roster.waiting and not self._roster.fits(role)
        if short and not self._short_of_gpus[role]:
            held = f"{self.gpus_held} of {self._roster.gpu_budget} GPUs are held"
            self._tell(Event.NO_GPU, role, f"{held}, draining workers included; waiting for one")
        self._short_of_gpus[role] = short

    def _ended(self, process: Process) -> None:
        self._count_gpus()
        worker = self._workers.pop(process.name)
        # Also after a drain: what a worker could not take back itself would draw requests to a closed port.
        instance = worker.instance or self._discovery.serving().get(worker.name)
        if instance is not None:
            self._discovery.remove(instance)
        asked = worker.life is Life.DRAINING
        if asked and not self._closed:
            self._tell(Event.STOPPED, worker.role, f"{worker.name} {process.fate}")
        elif not self._closed:
            self._lost(worker)
        self._roles.gone(worker.name, replace=not asked)
        self.step()

    def _lost(self, worker: Worker) -> None:
        if worker.life is Life.STARTING:
            self._back_off(worker.role)
        if worker.failed is None:
            words = worker.process.last_words() if worker.life is Life.STARTING else ""
            detail = f" ({words})" if words else ""
            self._tell(Event.DIED, worker.role, f"{worker.name} {worker.process.fate}{detail}; replacing it")

    def _back_off(self, role: Role) -> None:
        doubled = min(self._failures[role], MOST_DOUBLED)
        wait_s = min(self._limits.retry_most_s, self._limits.retry_s * 2**doubled)
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
        good = event in {Event.STARTED, Event.READY, Event.DRAINING, Event.STOPPED}
        log.log(logging.INFO if good else logging.WARNING, "%s worker %s: %s", role, event, what)
