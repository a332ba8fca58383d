"""How GPUs change their roles: a gateway relabels its workers itself; elsewhere one authority here drains and changes.

A worker that does not drain in time, or fails to change, keeps its old role.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO, Protocol

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.roles import RoleChange, RoleMove, Stage
from pdplugins.contracts.workers import Capabilities, Role
from pdplugins.errors import one_line
from pdplugins.hosts.power.assembly import Seat
from pdplugins.hosts.power.beside import Gateway, ask
from pdplugins.power.calls import Call, DeviceThreads
from pdplugins.runtime.roles import RoleAuthority
from pdplugins.runtime.roster import Life, Roster

log = logging.getLogger("pdplugins.power")

SERVES_BOTH = Capabilities(alone=False, splits=False)
"""Workers that have one role at a time and may have either."""


class Roles(Protocol):
    """Who has which role, and who changes that. Never waits."""

    def told(self, roles: Mapping[str, Role]) -> None:
        """Take in the roles that the host tells, where it does."""
        ...

    def role(self, worker: str) -> Role:
        """Return the role of a worker."""
        ...

    def ready(self, role: Role) -> int:
        """Return how many workers take new work of a role."""
        ...

    def propose(self, moves: Sequence[RoleMove], now_s: float) -> None:
        """Ask for changes."""
        ...

    def tick(self, now_s: float) -> None:
        """See to what is under way."""
        ...

    def close(self, within_s: float) -> None:
        """Let no worker drain that nobody will change any more. May wait."""
        ...


class FixedRoles:
    """Roles that nobody changes."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._roles = {seat.worker: seat.role for seat in seats}
        self._serving = set(self._roles)
        self.refused = 0
        """Changes that were wanted."""

    def told(self, roles: Mapping[str, Role]) -> None:
        """Take in the roles that the host tells of the workers that serve; nothing where it tells none."""
        if roles:
            self._serving = self._roles.keys() & roles.keys()
            self._roles |= {worker: roles[worker] for worker in self._serving}

    def role(self, worker: str) -> Role:
        """Return the role of a worker."""
        return self._roles[worker]

    def ready(self, role: Role) -> int:
        """Return how many workers serve a role."""
        return sum(self._roles[worker] is role for worker in self._serving)

    def propose(self, moves: Sequence[RoleMove], now_s: float) -> None:
        """Count changes that are not made."""
        self.refused += len(moves)

    def tick(self, now_s: float) -> None:
        """Nothing is under way."""

    def close(self, within_s: float) -> None:
        """Nothing is under way."""


class GatewayRoles(FixedRoles):
    """The labels of a gateway's workers. The gateway has the authority over them; this only proposes."""

    def __init__(self, seats: Sequence[Seat], gateway: Gateway) -> None:
        super().__init__(seats)
        self._gateway = gateway
        self._threads = DeviceThreads()
        self._call: Call[None] | None = None
        self.failures = 0

    def propose(self, moves: Sequence[RoleMove], now_s: float) -> None:
        """Send the proposals, if those before have arrived. The next look at the gateway shows what came of them."""
        self.tick(now_s)
        if self._call is None and moves:
            self._call = self._threads("roles", lambda: self._send(moves))

    def tick(self, now_s: float) -> None:
        """Take in what became of the last proposals."""
        if self._call is not None and self._call.done:
            if self._call.error is not None:
                self.failures += 1
                log.warning("the gateway did not take a proposal of roles: %s", one_line(self._call.error))
            self._call = None

    def _send(self, moves: Sequence[RoleMove]) -> None:
        for move in moves:
            self._gateway.move(move.worker, move.role, move.reason)


MOST_SAID = 4096
"""Bytes at the end of what a program says that are looked at."""
CHANGE_S = 600.0
"""Time that a change may take. Whoever gives up before it has ended takes a new role for the old one."""
AGAIN_S = 2.0
"""Pause before a worker is told again to serve."""
Step = Callable[[str, str, Role], None]
"""Does one step for a worker, ``drain``, ``change`` or ``undrain``, towards a role. May wait; raises when it fails."""


class ActedRoles:
    """Roles that are changed from here, through one authority: drain, change, and roll back what fails or is late.

    :param step: does the steps; each runs in a thread of its worker.
    :param drain_s: time in which a worker must drain.
    :param keep: is told the roles of all workers after each change. Does not raise.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        step: Step,
        drain_s: float,
        keep: Callable[[Mapping[str, Role]], None] = lambda _: None,
    ) -> None:
        self._step = step
        self._keep = keep
        self._threads = DeviceThreads()
        self._calls: dict[str, list[tuple[str, Call[None]]]] = {}
        self._again_s: dict[str, float] = {}
        """When workers are to be told again to serve in their old role, because that failed."""
        gpus = sum(len(seat.gpus) for seat in seats)
        roster = Roster(dict.fromkeys(Role, 1), gpus)
        self._authority = RoleAuthority(self, roster, changer=self, drain_s=drain_s)
        self._authority.tell(self, lambda error: log.warning("a role change was not noted: %s", one_line(error)))
        self.stages: Counter[str] = Counter()
        for seat in seats:
            self._authority.add(seat.worker, seat.role, len(seat.gpus), SERVES_BOTH)
            self._authority.ready(seat.worker)

    def told(self, roles: Mapping[str, Role]) -> None:
        """Roles are known here."""

    def role(self, worker: str) -> Role:
        """Return the role of a worker."""
        return self._authority.roster.members[worker].next_role

    def ready(self, role: Role) -> int:
        """Return how many workers take new work of a role."""
        return len(self._authority.roster.of(role, Life.READY))

    def propose(self, moves: Sequence[RoleMove], now_s: float) -> None:
        """Begin the changes that leave a worker for each phase."""
        self._authority.propose_moves(moves, Kind.POWER, now_s)

    def tick(self, now_s: float) -> None:
        """Take in the steps that have ended, and roll back what is late."""
        for worker, calls in self._calls.items():
            while calls and calls[0][1].done:
                what, call = calls.pop(0)
                if not calls:  # else a later step has taken its place
                    self._ended(worker, what, call)
        for worker in [worker for worker, at_s in self._again_s.items() if at_s <= time.monotonic()]:
            del self._again_s[worker]
            if not self._calls[worker] and self._authority.roster.members[worker].life is Life.READY:
                self.undrain(worker)
        self._authority.tick(now_s)

    def close(self, within_s: float) -> None:
        """Let workers that drain serve again in their old roles, and wait for the steps under way.

        A worker whose steps take longer is named in the log: nobody else knows that it may still drain.
        """
        members = self._authority.roster.members
        for member in [member for member in members.values() if member.life is Life.DRAINING]:
            self._authority.failed(member.id, "this process ends")
        until_s = time.monotonic() + within_s
        while (left := [worker for worker, calls in self._calls.items() if calls]) and time.monotonic() < until_s:
            time.sleep(0.01)
            self.tick(time.monotonic())
        for worker in self._again_s:
            log.warning("undrain %s has failed, so it may still drain; see that it serves again", worker)
        for worker in left:
            step = f"{self._calls[worker][-1][0]} {worker} {members[worker].next_role}"
            log.warning("the step '%s' has not ended in %g s; see that it is done", step, within_s)

    def on_role_change(self, change: RoleChange) -> None:
        """Log a change, and note what came of it."""
        self.stages[change.stage] += 1
        if change.stage is Stage.DONE:
            self._keep({member.id: member.role for member in self._authority.roster.members.values()})
        log.info("%s from %s to %s: %s %s", change.worker, change.before, change.role, change.stage, change.reason)

    def _begin(self, what: str, worker: str, role: Role) -> None:
        call = self._threads(worker, lambda: self._step(what, worker, role))
        self._calls.setdefault(worker, []).append((what, call))

    def _ended(self, worker: str, what: str, call: Call[None]) -> None:
        if call.error is not None and what == "undrain":
            log.warning("%s may still drain: undrain failed (%s); trying again", worker, one_line(call.error))
            self._again_s[worker] = time.monotonic() + AGAIN_S
        elif call.error is not None:
            self._authority.failed(worker, f"{what} of {worker} failed: {one_line(call.error)}")
        elif what == "drain":
            self._authority.drained(worker)
        elif what == "change":
            self._authority.ready(worker)

    # --- what the authority asks for ---------------------------------------------------------------------------------

    def drain(self, worker: str) -> None:
        """Begin a drain."""
        member = self._authority.roster.members[worker]
        self._begin("drain", worker, member.becomes or member.role)

    def change(self, worker: str, role: Role) -> None:
        """Begin the change of a worker that has drained."""
        self._begin("change", worker, role)

    def undrain(self, worker: str) -> None:
        """Let a worker serve in its old role again."""
        self._begin("undrain", worker, self._authority.roster.members[worker].role)

    def relabel(self, worker: str, role: Role) -> None:
        """Roles are no labels here."""

    def start(self, role: Role) -> bool:
        """Start no worker."""
        return False

    def stop(self, worker: str) -> None:
        """Stop no worker."""

    overdue = stop

    def work(self, worker: str) -> float:
        """Nothing is known of it here."""
        return 0.0


def command_step(command: Sequence[str], within_s: float) -> Step:
    """Return steps that a program of the operator does: ``PROGRAM … drain|change|undrain WORKER ROLE``.

    Exit code 0 means that the step is done: for ``drain`` that the worker has no requests left.

    :param within_s: the longest time of a step but ``change``, which may take `CHANGE_S`: it may start an engine.
    """

    def step(what: str, worker: str, role: Role) -> None:
        # No pipes: an engine that the program starts may keep them open, and so keep us waiting for its end.
        with TemporaryFile() as said:
            done = subprocess.run(
                [*command, what, worker, role],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
                process_group=0,  # Ctrl-C reaches only this process, which lets a change end and undoes a drain
                timeout=max(within_s, CHANGE_S) if what == "change" else within_s,
            )
            if done.returncode:
                raise OSError(f"{command[0]} ended with {done.returncode}: {one_line(_end(said), 120)}")

    return step


def _end(file: IO[bytes]) -> str:
    """Return the last line of a file."""
    file.seek(max(file.seek(0, os.SEEK_END) - MOST_SAID, 0))
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def role_switch_step(key: str | None, graph_gb: float | None = None) -> Step:
    """Return steps for SGLang servers with ``--enable-pd-role-switch``; a worker's name is its host:port.

    SGLang refuses to switch a server that is busy, and then nothing has changed. So the routers must have drained it
    before, or it must be idle; a refusal is rolled back.

    :param graph_gb: memory for the CUDA graphs of a decode worker. SGLang refuses the first change of a prefill worker
        to decode without this number.
    """

    def step(what: str, worker: str, role: Role) -> None:
        if what == "change":
            wanted: dict[str, object] = {"new_role": str(role)}
            if role is Role.DECODE and graph_gb is not None:
                wanted["decode_cuda_graph_memory_gb"] = graph_gb
            answer = json.loads(ask(f"http://{worker}/pd_role_switch", wanted, key, CHANGE_S))  # when it has switched
            if not answer.get("success"):
                raise OSError(one_line(answer.get("message", "no success"), 120))

    return step
