"""A host of the role authority, whose workers do what a test says."""

from __future__ import annotations

from typing import Any

from pdplugins.runtime.roles import RoleAuthority
from pdplugins.runtime.roster import Life, Roster
from pdplugins.types import Capabilities, Role, RoleChange, RoleMove, ScalePlan, Stage

P, D = Role.PREFILL, Role.DECODE


class Host:
    """Workers that do what a test says, and the books that a host keeps by itself."""

    def __init__(
        self,
        *,
        budget: int = 8,
        gpus: tuple[int, int] = (1, 1),
        any_role: bool = False,
        fixed: bool = False,
        **how: Any,
    ) -> None:
        self.roster = Roster(dict(zip((P, D), gpus, strict=True)), budget, any_role=any_role)
        self.roles = RoleAuthority(self, self.roster, changer=None if fixed else self, **how)
        self.refuses = False
        """Whether the machine starts no worker."""
        self.at_once = False
        """Whether a drain, a change and a stop are over before the call returns."""
        self.running: dict[str, tuple[Role, int]] = {}
        self.serving: set[str] = set()
        self.overdue_: list[str] = []
        self.heard: list[RoleChange] = []
        self.roles.tell(self, self.fault)

    def on_role_change(self, change: RoleChange) -> None:
        self.heard.append(change)

    def fault(self, error: BaseException) -> None:
        raise error

    def begin(self, prefill: int, decode: int, capabilities: Capabilities | None = None) -> None:
        """Have workers that serve, without a plan."""
        for role, count in ((P, prefill), (D, decode)):
            for _ in range(count):
                self.start(role)
        for worker in self.running:
            if capabilities is not None:
                self.roster.members[worker].capabilities = capabilities
            self.serve(worker)

    def serve(self, worker: str) -> None:
        self.serving.add(worker)
        self.roles.ready(worker)

    def end(self, worker: str, *, replace: bool = False) -> None:
        del self.running[worker]
        self.serving.discard(worker)
        self.roles.gone(worker, replace=replace)

    # what the authority asks for

    def start(self, role: Role) -> bool:
        if self.refuses:
            return False
        name = f"{role[0]}{len(self.names)}"
        self.names.append(name)
        self.running[name] = role, self.roster.gpus[role]
        self.roles.add(name, role, self.roster.gpus[role])
        return True

    def stop(self, worker: str) -> None:
        if self.at_once:
            self.end(worker)

    def drain(self, worker: str) -> None:
        self.serving.discard(worker)
        if self.at_once:
            self.roles.drained(worker)

    def overdue(self, worker: str) -> None:
        assert self.roster.members[worker].life is Life.DRAINING
        self.overdue_.append(worker)

    def work(self, worker: str) -> float:
        return 0.0

    def relabel(self, worker: str, role: Role) -> None:
        self.running[worker] = role, self.running[worker][1]

    def change(self, worker: str, role: Role) -> None:
        self.relabel(worker, role)
        if self.at_once:
            self.serve(worker)

    def undrain(self, worker: str) -> None:
        self.serving.add(worker)
        self.relabel(worker, self.roster.members[worker].role)

    # what tests ask

    @property
    def names(self) -> list[str]:
        """Names of all workers so far."""
        return self.__dict__.setdefault("_names", [])

    def stages(self) -> list[Stage]:
        return [change.stage for change in self.heard]

    def roles_of(self) -> dict[str, Role]:
        return {name: member.role for name, member in self.roster.members.items()}

    def plan(self, prefill: int, decode: int, now_s: float = 0.0) -> bool:
        return self.roles.propose_pools(ScalePlan(prefill, decode, "plan"), "planner", now_s)

    def move(self, worker: str, role: Role, by: str = "power", now_s: float = 0.0) -> None:
        self.roles.propose_moves([RoleMove(worker, role, "hot")], by, now_s)
