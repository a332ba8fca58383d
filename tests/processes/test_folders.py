"""Temporary folders: private, held by a lock, and swept up once their owner is dead."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdplugins.processes.folders import LOCK, own_folder, sweep

PREFIX = "pdplugins-test-"


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(temp: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], Path]]]:
    """Start a process that owns a folder."""
    code = (
        "import sys, time\nfrom pdplugins.processes.folders import own_folder\n"
        f"with own_folder({PREFIX!r}) as folder:\n    print(folder, flush=True)\n    time.sleep(60)\n"
    )
    running: list[subprocess.Popen[str]] = []

    def start(*wrapper: str) -> tuple[subprocess.Popen[str], Path]:
        environment = {**os.environ, "TMPDIR": str(temp)}
        command = [*wrapper, sys.executable, "-c", code]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout is not None
        return running[-1], Path(running[-1].stdout.readline().strip())

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_nobody_else_may_enter(temp: Path) -> None:
    with own_folder(PREFIX) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent == temp


def test_the_folder_of_a_dead_process_goes_and_that_of_a_living_one_stays(
    owner: Callable[..., tuple[subprocess.Popen[str], Path]],
) -> None:
    process, folder = owner()
    sweep(PREFIX)
    assert folder.exists()
    process.kill()
    process.wait()
    sweep(PREFIX)
    assert not folder.exists()


def test_a_living_process_of_another_pid_namespace_keeps_its_folder(
    owner: Callable[..., tuple[subprocess.Popen[str], Path]],
) -> None:
    """As in two containers that share a folder: its process id means nothing here."""
    unshare = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        unshare = unshare[:1] + unshare[3:]
        if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
            pytest.skip("this machine makes no PID namespaces")
    _, folder = owner(*unshare)
    sweep(PREFIX)
    assert folder.exists()


def test_what_no_launcher_made_stays(temp: Path) -> None:
    """Kept logs without a lock, a lock that is a link or a pipe, and folders of other programs."""
    logs, link, pipe, other = (temp / name for name in (f"{PREFIX}a", f"{PREFIX}b", f"{PREFIX}c", "else-d"))
    for folder in (logs, link, pipe, other):
        folder.mkdir()
    (link / LOCK).symlink_to(temp / "elsewhere")
    os.mkfifo(pipe / LOCK)
    (other / LOCK).touch()
    (temp / f"{PREFIX}e").symlink_to(temp)
    sweep(PREFIX)
    assert [folder.exists() for folder in (logs, link, other)] == [True] * 3
