"""Labels of dual-role workers: routers propose changes, and the one authority over roles applies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.roles import HearsRoles, RoleChange, RoleMove
from pdplugins.contracts.workers import ANYTHING, Role
from pdplugins.gateway.books import WorkerBook
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.runtime.roles import RoleAuthority
from pdplugins.runtime.roster import Roster


class WorkerLabels:
    """The roles of the workers that are there, as the authority sees them.

    Workers come and go by themselves here. A label changes at once, since a dual-role worker does both phases.

    :param on_change: is called after a label has changed.
    """

    def __init__(self, metrics: GatewayMetrics, on_change: Callable[[], None]) -> None:
        self._metrics = metrics
        self._on_change = on_change
        self._books: dict[str, WorkerBook] = {}
        roster = Roster(dict.fromkeys(Role, 1), 0, any_role=True)
        self._authority = RoleAuthority(self, roster, changer=self, label=True)
        self.tell(self, lambda error: metrics.fault("gateway_error", error, error))

    def came(self, book: WorkerBook) -> None:
        """Take in a worker that serves from now on."""
        self._books[book.id] = book
        self._authority.add(book.id, book.role, book.tp or 1, book.capabilities or ANYTHING)
        self._authority.ready(book.id)

    def went(self, worker: str) -> None:
        """Take out a worker that does not serve any more."""
        self._authority.gone(worker)

    def forget(self, worker: str) -> None:
        """Let go of the book of a worker that went, or never came."""
        self._books.pop(worker, None)

    def propose(self, moves: Iterable[RoleMove], by: Kind = Kind.ROUTER) -> None:
        """Change the labels that a policy wants changed, as far as that leaves a worker for each phase."""
        self._authority.propose_moves(moves, by, monotonic())

    def tell(self, listener: HearsRoles, fault: Callable[[BaseException], None]) -> None:
        """Tell `listener` of every change from now on. What it raises goes to `fault`."""
        self._authority.tell(listener, fault)

    def on_role_change(self, change: RoleChange) -> None:
        """Count a change."""
        self._metrics.role_changes.labels(change.by, change.stage).inc()

    # --- what the authority asks for ---------------------------------------------------------------------------------

    def relabel(self, worker: str, role: Role) -> None:
        """Give a worker another label."""
        self._books[worker].role = role
        self._on_change()

    def work(self, worker: str) -> float:
        """Return the tokens that a worker has to do with."""
        load = self._books[worker].load
        return load.queued_tokens + load.running_tokens

    def start(self, role: Role) -> bool:
        """Start no worker: the gateway routes to those that it is given."""
        return False

    def stop(self, worker: str) -> None:
        """Stop no worker."""

    drain = overdue = undrain = stop

    def change(self, worker: str, role: Role) -> None:
        """Change no role after a drain: labels change at once."""
