"""Processes the launcher owns: they are watched, they end, and none outlives it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pdplugins.processes.process import Process, python, stop_all
from tests.waiting import until

PYTHON = [sys.executable, "-c"]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


def test_the_end_of_a_process_is_noticed_at_once(tmp_path: Path) -> None:
    """Whoever owns it is called, with its exit code and its last words."""
    ended: list[Process] = []

    async def work() -> None:
        log = tmp_path / "a.log"
        process = Process.start("a", [*PYTHON, "print('why'); exit(3)"], env={}, log=log, on_exit=ended.append)
        await process.exited.wait()
        assert ended == [process]
        assert (process.returncode, process.fate, process.last_words()) == (3, "exited with code 3", "why")

    run(work)


def test_what_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    """The grace period is for all together, and nothing is left after it."""

    async def work() -> None:
        willing = Process.start("a", ["sleep", "60"], env={"PATH": os.environ["PATH"]}, log=tmp_path / "a.log")
        stubborn = [Process.start(name, [*PYTHON, STUBBORN], env={}, log=tmp_path / f"{name}.log") for name in "bcdef"]
        while not all(process.log.read_text() for process in stubborn):
            await asyncio.sleep(0.02)
        began = time.monotonic()
        await stop_all([willing, *stubborn], 2.0)
        assert time.monotonic() - began < 8
        assert willing.fate == "was killed by SIGTERM"
        assert [process.fate for process in stubborn] == ["was killed by SIGKILL"] * 5

    run(work)


def test_a_signal_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    async def work() -> None:
        one = Process.start("a", ["sleep", "60"], env={"PATH": os.environ["PATH"]}, log=tmp_path / "a.log")
        os.kill(one.pid, signal.SIGRTMIN + 6)
        while one.returncode is None:
            await asyncio.sleep(0.02)
        assert one.fate == f"was killed by signal {signal.SIGRTMIN + 6}"

    run(work)


def test_a_program_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    """The fleet counts it; see the fleet's tests."""

    async def work() -> None:
        with pytest.raises(OSError, match="No such file"):
            Process.start("a", ["/no/such/program"], env={}, log=tmp_path / "a.log")

    run(work)


@pytest.mark.moderate
def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """Also when the parent had no chance to say anything."""
    (tmp_path / "lasting.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    command = python("lasting")
    command[3] = "PARENT"
    parent_code = (
        "import os, subprocess, sys, time\n"
        f"command = {command!r}\n"
        "command[3] = str(os.getpid())\n"
        "subprocess.Popen(command); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [*PYTHON, parent_code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert until(lambda: not Path(f"/proc/{child}").exists(), 5)


def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    """However it ends: a grandchild that nobody waits for goes too."""

    async def work() -> None:
        script = "sleep 60 & echo $!; exit 3"
        process = Process.start("a", ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, log=tmp_path / "a.log")
        await process.exited.wait()
        grandchild = Path("/proc", process.log.read_text().strip(), "cmdline")
        deadline_s = time.monotonic() + 30
        while there := grandchild.exists() and grandchild.read_bytes():  # a zombie has no command line
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(0.02)
        assert not there

    run(work)


@pytest.mark.parametrize("what", ["log", "folder", "nothing may be written", "a link"])
def test_the_end_of_a_process_is_noticed_whatever_happened_to_its_log(tmp_path: Path, what: str) -> None:
    """Its last words are those that it wrote to a file that is gone, or nothing; the next process starts again."""
    logs = tmp_path / "logs"
    log = logs / "a.log"
    if what == "nothing may be written":
        log.mkdir(parents=True)
    if what == "a link":
        logs.mkdir()
        log.symlink_to(tmp_path / "of someone else")
    lost = what in ("nothing may be written", "a link")
    ended: list[Process] = []

    async def work() -> None:
        code = "import sys; print('why', flush=True); sys.stdin.read(); exit(3)"
        process = Process.start("a", [*PYTHON, code], env={}, log=log, on_exit=ended.append, stdin=True)
        while not lost and not process.last_words():
            await asyncio.sleep(0.02)
        if what == "log":
            log.unlink()
        if what == "folder":
            shutil.rmtree(logs)
        assert process.stdin is not None
        process.stdin.close()
        await process.exited.wait()
        assert ended == [process]
        assert (process.fate, process.last_words()) == ("exited with code 3", "" if lost else "why")
        again = Process.start("a", [*PYTHON, "print('again')"], env={}, log=log)
        await again.exited.wait()
        assert again.last_words() == ("" if lost else "again")

    run(work)
    assert not (tmp_path / "of someone else").exists()


def test_only_the_user_may_read_a_log_and_it_keeps_what_earlier_processes_said(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"

    async def work() -> None:
        for word in ("one", "two"):
            process = Process.start("a", [*PYTHON, f"print({word!r})"], env={}, log=log)
            await process.exited.wait()

    run(work)
    assert log.read_text() == "one\ntwo\n"
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_last_words_hold_no_secrets_and_no_control_characters(tmp_path: Path) -> None:
    async def work() -> None:
        code = "print('api_key=abc \\x1b[31m http://u:pw@h')"
        process = Process.start("a", [*PYTHON, code], env={}, log=tmp_path / "a.log")
        await process.exited.wait()
        assert process.last_words() == "api_key=*** ?[31m http://***@h"

    run(work)


def test_a_process_that_cannot_be_watched_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever started it counts it as refused, and starts it again."""
    started: list[int] = []

    def refused(pid: int) -> int:
        started.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refused)

    async def work() -> None:
        with pytest.raises(OSError, match="Too many open files"):
            Process.start("a", ["sleep", "60"], env={"PATH": os.environ["PATH"]}, log=tmp_path / "a.log")

    run(work)
    (pid,) = started
    assert not Path(f"/proc/{pid}").exists()
