"""Processes that the launcher starts, watches and ends from its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

LAST_LINES = 3
"""Number of last log lines to show when a process failed."""
TAIL_BYTES = 10_000


def python(module: str, *arguments: str, delay_s: float = 0.0) -> list[str]:
    """Return the command that runs a Python module in a process that dies with this one.

    :param delay_s: seconds that the process waits before it runs the module.
    """
    wrapper = "pdplugins.processes.child"
    return [sys.executable, "-m", wrapper, str(os.getpid()), str(delay_s), module, *arguments]


class Process:
    """One running process and its log."""

    def __init__(
        self, name: str, popen: subprocess.Popen[bytes], log: Path, on_exit: Callable[[Process], None]
    ) -> None:
        self.name = name
        self.log = log
        self.stdin = popen.stdin
        self.exited = asyncio.Event()
        self._popen = popen
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._pidfd, self._ended)

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        on_exit: Callable[[Process], None] = lambda _: None,
        stdin: bool = False,
    ) -> Process:
        """Start `command`. Raises OSError when the machine refuses.

        Call it from the thread of the event loop, because the kernel ties the process to the thread that forks it.
        """
        with log.open("ab") as output:
            popen = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches only the launcher, which then stops everything in order
            )
        return cls(name, popen, log, on_exit)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._popen.returncode

    @property
    def fate(self) -> str:
        """A description of how it ended."""
        code = self.returncode
        if code is None:
            return "runs"
        return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def last_words(self) -> str:
        """Return the end of its log in one line."""
        with self.log.open("rb") as file:
            file.seek(max(self.log.stat().st_size - TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-LAST_LINES:])

    def forget(self) -> None:
        """Do not report its end."""
        self._on_exit = lambda _: None

    def terminate(self) -> None:
        """Ask it to end."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, and all processes that it has started."""
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError):  # kill what it left behind; its id is not reused before `wait`
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self.exited.set()
        self._on_exit(self)


async def stop_all(processes: Iterable[Process], grace_s: float) -> None:
    """Ask all processes to end, kill those left after `grace_s` seconds, and return when all have ended."""
    left = [process for process in processes if process.returncode is None]
    for process in left:
        process.terminate()
    waits = [asyncio.ensure_future(process.exited.wait()) for process in left]
    if not waits:
        return
    _, late = await asyncio.wait(waits, timeout=grace_s)
    if late:
        for process in left:
            process.kill()
        await asyncio.wait(late)
