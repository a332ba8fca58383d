"""Role moves where the host has no authority of its own: drain, change, deadline and rollback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pdplugins.hosts.power import roles as module
from pdplugins.hosts.power.assembly import Seat
from pdplugins.hosts.power.roles import ActedRoles, command_step, role_switch_step
from pdplugins.types import Role, RoleMove
from tests.waiting import until

SEATS = (Seat("a", (0,), Role.PREFILL), Seat("b", (1,), Role.DECODE), Seat("c", (2,), Role.DECODE))
TO_PREFILL = [RoleMove("c", Role.PREFILL, "TTFT")]


class Steps:
    """Steps that a test ends or lets fail."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, Role]] = []
        self.fails: set[str] = set()
        self.drained = threading.Event()
        self.drained.set()

    def __call__(self, what: str, worker: str, role: Role) -> None:
        self.seen.append((what, worker, role))
        if what == "drain":
            assert self.drained.wait(60)
        if what in self.fails:
            raise OSError("no")


def moved(roles: ActedRoles, now_s: float = 0.0) -> None:
    roles.propose(TO_PREFILL, now_s)


def test_a_worker_drains_and_then_changes() -> None:
    steps = Steps()
    roles = ActedRoles(SEATS, steps, 10.0)
    moved(roles)
    assert until(lambda: (roles.tick(1.0), roles.ready(Role.PREFILL) == 2)[1])
    assert steps.seen == [("drain", "c", Role.PREFILL), ("change", "c", Role.PREFILL)]
    assert roles.role("c") is Role.PREFILL
    assert roles.stages == {"begun": 1, "done": 1}


@pytest.mark.parametrize("what", ["drain", "change"])
def test_what_fails_is_rolled_back(what: str) -> None:
    steps = Steps()
    steps.fails.add(what)
    roles = ActedRoles(SEATS, steps, 10.0)
    moved(roles)
    assert until(lambda: (roles.tick(1.0), roles.stages["rolled_back"] == 1)[1])
    assert roles.role("c") is Role.DECODE
    assert until(lambda: steps.seen[-1:] == [("undrain", "c", Role.DECODE)])


def test_a_drain_that_is_late_is_rolled_back() -> None:
    steps = Steps()
    steps.drained.clear()
    roles = ActedRoles(SEATS, steps, 10.0)
    moved(roles)
    roles.tick(9.0)
    assert roles.ready(Role.DECODE) == 1
    roles.tick(11.0)
    assert roles.ready(Role.DECODE) == 2
    assert roles.stages["rolled_back"] == 1
    steps.drained.set()
    assert until(lambda: steps.seen[-1:] == [("undrain", "c", Role.DECODE)])


def test_at_the_end_a_worker_that_drains_serves_again() -> None:
    steps = Steps()
    steps.drained.clear()
    roles = ActedRoles(SEATS, steps, 60.0)
    moved(roles)
    assert until(lambda: steps.seen == [("drain", "c", Role.PREFILL)])
    threading.Timer(0.1, steps.drained.set).start()
    roles.close(30.0)
    assert steps.seen[1:] == [("undrain", "c", Role.DECODE)]
    assert roles.stages["rolled_back"] == 1


def test_a_change_that_is_under_way_at_the_end_ends() -> None:
    steps = Steps()
    roles = ActedRoles(SEATS, steps, 60.0)
    moved(roles)
    assert until(lambda: (roles.tick(0.0), ("change", "c", Role.PREFILL) in steps.seen)[1])
    roles.close(30.0)
    assert roles.role("c") is Role.PREFILL
    assert len(steps.seen) == 2


def test_a_step_that_does_not_end_is_named_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()
    steps.drained.clear()
    roles = ActedRoles(SEATS, steps, 60.0)
    moved(roles)
    roles.close(0.05)
    assert "the step 'undrain c decode' has not ended" in caplog.text
    steps.drained.set()


def test_the_last_worker_of_a_phase_stays() -> None:
    steps = Steps()
    roles = ActedRoles(SEATS, steps, 10.0)
    roles.propose([RoleMove("a", Role.DECODE, "TPOT")], 0.0)
    assert roles.stages == {"refused": 1}
    assert steps.seen == []


def test_a_program_of_the_operator_does_the_steps(tmp_path: Path) -> None:
    program = tmp_path / "steps.py"
    program.write_text("import sys; print(*sys.argv[1:], file=open(sys.argv[1], 'a')); sys.exit(sys.argv[3] == 'bad')")
    step = command_step((sys.executable, str(program), str(tmp_path / "log")), 60.0)
    step("drain", "good", Role.PREFILL)
    with pytest.raises(OSError, match="ended with 1"):
        step("drain", "bad", Role.PREFILL)
    assert (tmp_path / "log").read_text().splitlines()[0].endswith("drain good prefill")


def test_a_program_may_leave_an_engine_running_that_holds_its_output_open(tmp_path: Path) -> None:
    """It is done when it ends, not when what it has started does."""
    program = tmp_path / "restart.sh"
    program.write_text('#!/bin/sh\nsleep 20 &\necho $! > "$0.pid"\necho first >&2\necho why\nexit $2\n')
    program.chmod(0o755)
    step = command_step((str(program),), 5.0)
    try:
        step("change", "0", Role.DECODE)
        with pytest.raises(OSError, match="ended with 3: why"):
            step("change", "3", Role.DECODE)
    finally:
        os.kill(int(Path(f"{program}.pid").read_text()), signal.SIGTERM)


def test_a_program_is_not_ended_by_the_ctrl_c_that_ends_the_daemon(tmp_path: Path) -> None:
    program = tmp_path / "slow.sh"
    program.write_text('#!/bin/sh\necho begun > "$0.log"\nsleep 1\necho ended > "$0.log"\n')
    program.chmod(0o755)
    code = (
        "import signal, sys; from pdplugins.hosts.power.roles import command_step; from pdplugins.types import Role\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "command_step((sys.argv[1],), 20.0)('change', 'w', Role.DECODE)"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code, str(program)], process_group=0)
    log = Path(f"{program}.log")
    assert until(lambda: log.exists() and log.read_text() == "begun\n")
    os.killpg(daemon.pid, signal.SIGINT)  # as a terminal does
    assert daemon.wait(30) == 0
    assert log.read_text() == "ended\n"


class Switch(BaseHTTPRequestHandler):
    """``/pd_role_switch`` of SGLang."""

    asked: list[dict[str, object]] = []  # noqa: RUF012 - a test's own
    good = True
    takes_s = 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append({"path": self.path, **body})
        time.sleep(self.takes_s)
        said = json.dumps({"success": self.good, "message": "ok" if self.good else "instance is not idle"}).encode()
        self.send_response(200 if self.good else 400)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_sglang_servers_are_switched_and_a_busy_one_refuses() -> None:
    with HTTPServer(("127.0.0.1", 0), Switch) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        step, worker = role_switch_step(None, 1.5), f"127.0.0.1:{server.server_port}"
        step("drain", worker, Role.DECODE)
        step("change", worker, Role.DECODE)
        step("change", worker, Role.PREFILL)
        to_decode = {"new_role": "decode", "decode_cuda_graph_memory_gb": 1.5}
        assert Switch.asked == [
            {"path": "/pd_role_switch", **to_decode},
            {"path": "/pd_role_switch", "new_role": "prefill"},
        ]
        Switch.good = False
        with pytest.raises(OSError, match="instance is not idle"):
            step("change", worker, Role.PREFILL)
        server.shutdown()


def test_a_server_may_take_longer_to_switch_than_to_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang answers when it has switched: whoever gives up before takes a new role for the old one."""
    monkeypatch.setattr(Switch, "good", True)
    monkeypatch.setattr(Switch, "takes_s", 0.3)
    with HTTPServer(("127.0.0.1", 0), Switch) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        worker = f"127.0.0.1:{server.server_port}"
        role_switch_step(None)("change", worker, Role.DECODE)
        monkeypatch.setattr(module, "CHANGE_S", 0.1)
        with pytest.raises(TimeoutError):
            role_switch_step(None)("change", worker, Role.DECODE)
        server.shutdown()


def test_so_may_a_program(tmp_path: Path) -> None:
    """It may start an engine, which takes minutes."""
    program = tmp_path / "slow.sh"
    program.write_text("#!/bin/sh\nsleep 0.5\n")
    program.chmod(0o755)
    step = command_step((str(program),), 0.1)
    step("change", "w", Role.DECODE)
    with pytest.raises(subprocess.TimeoutExpired):
        step("drain", "w", Role.DECODE)


def test_an_undrain_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Outside the worker still drains, and nobody else knows it."""
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    steps = Steps()
    steps.fails = {"change", "undrain"}
    roles = ActedRoles(SEATS, steps, 10.0)
    moved(roles)
    assert until(lambda: (roles.tick(1.0), ("undrain", "c", Role.DECODE) in steps.seen)[1])
    assert until(lambda: (roles.tick(1.0), "c may still drain: undrain failed (no)" in caplog.text)[1])
    roles.close(0.0)
    assert "undrain c has failed, so it may still drain" in caplog.text
    steps.fails.clear()
    assert until(lambda: (roles.tick(1.0), steps.seen.count(("undrain", "c", Role.DECODE)) > 1)[1])
    seen = len(steps.seen)
    time.sleep(0.2)
    roles.tick(1.0)
    assert len(steps.seen) == seen
