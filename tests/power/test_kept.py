"""The roles of workers over a restart of the process that has changed them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from pdplugins.config import parse
from pdplugins.hosts.power.assembly import Seat
from pdplugins.hosts.power.daemon import build_beside
from pdplugins.hosts.power.kept import KeptRoles
from pdplugins.hosts.power.roles import ActedRoles, Roles
from pdplugins.power import saved
from pdplugins.types import Role, RoleMove
from tests.power.daemon import until

UUIDS = ("GPU-0", "GPU-1", "GPU-2")
SEATS = (Seat("a", (0,), Role.PREFILL), Seat("b", (1,), Role.DECODE), Seat("c", (2,), Role.DECODE))
AS_CONFIGURED = {"a": Role.PREFILL, "b": Role.DECODE, "c": Role.DECODE}
CHANGED = AS_CONFIGURED | {"c": Role.PREFILL}
ENTRY = {"role": "prefill", "instead_of": "decode", "gpus": ["GPU-2"]}


def told(folder: Path, seats: tuple[Seat, ...] = SEATS, uuids: tuple[str, ...] = UUIDS) -> dict[str, Role]:
    """The roles that a new process takes for those of the workers."""
    return {seat.worker: seat.role for seat in KeptRoles(folder, seats, uuids).seats()}


def write(folder: Path, workers: object, schema: object = 1, boot: object = None) -> None:
    data = {"schema": schema, "boot": boot or saved.boot(), "workers": workers}
    (folder / "roles.json").write_text(json.dumps(data))


@pytest.mark.parametrize("actuator", ["command", "role_switch"])
def test_a_new_process_knows_the_roles_that_the_last_one_changed(tmp_path: Path, actuator: str) -> None:
    program = tmp_path / "steps.py"
    program.write_text("")
    node = {"actuator": "command", "command": [sys.executable, str(program)], "state": str(tmp_path)}

    def started(**changes: object) -> Roles:
        config = parse({"node": node | changes})
        return build_beside(config, SEATS, KeptRoles(tmp_path, SEATS, UUIDS), 1.0)[1]

    def move(worker: str, role: Role) -> None:
        roles = started()
        roles.propose([RoleMove(worker, role, "a test")], time.monotonic())
        assert until(lambda: (roles.tick(time.monotonic()), roles.ready(role) == 2)[1])

    move("c", Role.PREFILL)
    assert {worker: started(actuator=actuator).role(worker) for worker in AS_CONFIGURED} == CHANGED
    move("c", Role.DECODE)
    assert {worker: started(actuator=actuator).role(worker) for worker in AS_CONFIGURED} == AS_CONFIGURED
    assert not (tmp_path / "roles.json").exists(), "what the config says is not noted"


def test_a_change_that_fails_is_not_noted(tmp_path: Path) -> None:
    def fails(what: str, worker: str, role: Role) -> None:
        if what == "change":
            raise OSError("no")

    kept = KeptRoles(tmp_path, SEATS, UUIDS)
    roles = ActedRoles(SEATS, fails, 10.0, kept.keep)
    roles.propose([RoleMove("c", Role.PREFILL, "a test")], 0.0)
    assert until(lambda: (roles.tick(1.0), roles.stages["rolled_back"] == 1)[1])
    assert not (tmp_path / "roles.json").exists()


def test_what_the_config_says_now_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, {"c": ENTRY})
    assert told(tmp_path) == CHANGED
    assert told(tmp_path, uuids=("GPU-0", "GPU-1", "GPU-9")) == AS_CONFIGURED
    assert "c has other GPUs or another role in the config now" in caplog.text
    prefills = (*SEATS[:1], Seat("b", (1,), Role.DECODE), Seat("c", (2,), Role.PREFILL))
    write(tmp_path, {"c": {**ENTRY, "role": "decode"}})
    assert told(tmp_path, prefills) == CHANGED
    write(tmp_path, {"c": ENTRY})
    caplog.clear()
    assert told(tmp_path, SEATS[:2]) == {"a": Role.PREFILL, "b": Role.DECODE}
    assert "1 workers take no part any more, such as 'c'" in caplog.text


def test_roles_that_would_leave_a_phase_without_a_worker_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"b": {**ENTRY, "gpus": ["GPU-1"]}, "c": ENTRY})
    assert told(tmp_path) == AS_CONFIGURED
    assert "a phase would have no worker" in caplog.text


def test_after_a_restart_of_the_machine_the_roles_are_those_of_the_config(tmp_path: Path) -> None:
    write(tmp_path, {"c": ENTRY}, boot="another start")
    assert told(tmp_path) == AS_CONFIGURED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        '{"boot": "B"}',
        '{"schema": 9, "boot": "B", "workers": {}}',
        '{"schema": 1, "boot": "B", "workers": [1]}',
        '{"schema": 1, "boot": "B", "workers": {"c": "prefill"}}',
        '{"schema": 1, "boot": "B", "workers": {"c": {"role": NaN, "instead_of": {}, "gpus": -1}}}',
        '{"schema": 1, "boot": "B", "workers": {"c": 1' + "0" * 5000 + "}}",
        '{"schema": 1, "boot": "B", "workers": {"c": "' + "x" * 2**21 + '"}}',
    ],
)
def test_a_damaged_file_is_one_line_in_the_log(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "roles.json").write_text(text.replace('"B"', json.dumps(saved.boot())))
    assert told(tmp_path) == AS_CONFIGURED
    assert len(caplog.text.splitlines()) == 1


def test_a_disk_that_takes_nothing_stops_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeptRoles(tmp_path / "nowhere", SEATS, UUIDS).keep(CHANGED)
    assert "a new start would not know the roles of now" in caplog.text
