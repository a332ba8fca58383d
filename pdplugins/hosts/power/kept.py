"""The roles that workers were given here, over a restart of this process: a file beside the caps from before.

Nobody else knows them, and who takes the roles of the config for them may take the last worker of a phase away. The
file names the workers that have another role than the config gives them. A worker counts as long as the config gives it
the same GPUs and the same role, and until the machine restarts. What is damaged or does not fit is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdplugins.contracts.workers import Role
from pdplugins.errors import one_line, shown
from pdplugins.hosts.power.assembly import Seat
from pdplugins.power.saved import boot, read_state, write_state

log = logging.getLogger("pdplugins.power")

SCHEMA = 1
"""Of the file."""


class KeptRoles:
    """The roles of the workers of one node.

    :param seats: the workers as the config has them.
    :param uuids: of the GPUs, by index.
    """

    def __init__(self, folder: Path, seats: Sequence[Seat], uuids: Sequence[str]) -> None:
        self._path = folder / "roles.json"
        self._seats = tuple(seats)
        self._uuids = uuids

    def seats(self) -> tuple[Seat, ...]:
        """Return the workers with the roles that they have now. Never raises."""
        try:
            kept = self._load()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("%s is not used, the roles are those of the config: %s", self._path, one_line(error, 60))
            return self._seats
        seats = tuple(self._as_kept(seat, kept) for seat in self._seats)
        if gone := kept.keys() - {seat.worker for seat in seats}:
            log.warning("%s: %d workers take no part any more, such as %s", self._path, len(gone), shown(min(gone)))
        if not {seat.role for seat in self._seats} <= {seat.role for seat in seats}:
            log.warning("%s is not used, the roles are those of the config: a phase would have no worker", self._path)
            return self._seats
        return seats

    def keep(self, roles: Mapping[str, Role]) -> None:
        """Note the roles that workers have now. Where that fails, the next start takes those of the config."""
        changed = [(seat, roles[seat.worker]) for seat in self._seats if roles[seat.worker] is not seat.role]
        workers = {seat.worker: self._entry(seat, role) for seat, role in changed}
        try:
            if workers:
                write_state(self._path, {"schema": SCHEMA, "boot": boot(), "workers": workers}, durable=False)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s; a new start would not know the roles of now", self._path, error.strerror)

    def _load(self) -> dict[str, Any]:
        try:
            data = read_state(self._path)
        except FileNotFoundError:
            return {}
        if data["boot"] != boot():
            return {}
        if data["schema"] != SCHEMA:
            raise ValueError("it is of another version of pdplugins")
        return dict(data["workers"])

    def _as_kept(self, seat: Seat, kept: Mapping[str, Any]) -> Seat:
        if (entry := kept.get(seat.worker)) is None:
            return seat
        for role in Role:
            if role is not seat.role and entry == self._entry(seat, role):
                log.info("%s serves %s since a change of its role; the config says %s", seat.worker, role, seat.role)
                return replace(seat, role=role)
        log.warning("%s: %s has other GPUs or another role in the config now, so that counts", self._path, seat.worker)
        return seat

    def _entry(self, seat: Seat, role: Role) -> dict[str, Any]:
        return {"role": str(role), "instead_of": str(seat.role), "gpus": [self._uuids[gpu] for gpu in seat.gpus]}
