"""Processes that the launcher starts, watches and ends from its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pdplugins.errors import printable
from pdplugins.redaction import redacted

log = logging.getLogger("pdplugins.processes")

LAST_LINES = 3
"""Number of last log lines to show when a process failed."""
TAIL_BYTES = 10_000


def python(module: str, *arguments: str, delay_s: float = 0.0, executable: str = sys.executable) -> list[str]:
    """Return the command that runs a Python module in a process that dies with this one.

    :param delay_s: seconds that the process waits before it runs the module.
    :param executable: the Python that runs it, which has pdplugins too.
    """
    wrapper = "pdplugins.processes.child"
    return [executable, "-m", wrapper, str(os.getpid()), str(delay_s), module, *arguments]


class Process:
    """One running process and its log.

    :param output: the open log. Its end can be read even when someone has deleted the file.
    """

    def __init__(
        self,
        name: str,
        popen: subprocess.Popen[bytes],
        log: Path,
        output: int,
        on_exit: Callable[[Process], None],
    ) -> None:
        self.name = name
        self.log = log
        self.stdin = popen.stdin
        self.exited = asyncio.Event()
        self._output: int | None = output
        self._said = ""
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
        output = open_log(log)
        try:
            popen = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches only the launcher, which then stops everything in order
            )
        except BaseException:
            os.close(output)
            raise
        try:
            return cls(name, popen, log, output, on_exit)
        except BaseException:  # nobody would watch it
            popen.kill()
            popen.wait()
            os.close(output)
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._popen.returncode

    @property
    def stopped(self) -> bool:
        """Whether it is suspended, as by SIGSTOP or a debugger, so that it does nothing."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state in {"T", "t"}

    @property
    def fate(self) -> str:
        """A description of how it ended."""
        code = self.returncode
        if code is None:
            return "runs"
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:  # a real-time signal has no name
            return f"was killed by signal {-code}"

    def last_words(self) -> str:
        """Return the end of its log in one line; nothing where the log cannot be read."""
        if self._output is not None:
            with contextlib.suppress(OSError):
                end = os.fstat(self._output).st_size
                text = os.pread(self._output, TAIL_BYTES, max(end - TAIL_BYTES, 0)).decode(errors="replace")
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                self._said = printable(redacted(" | ".join(lines[-LAST_LINES:])))
        return self._said

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
        self.last_words()
        if self._output is not None:
            os.close(self._output)
            self._output = None
        self.exited.set()
        self._on_exit(self)


def open_log(path: Path) -> int:
    """Open a log to append to it and to read its end; only this user may read it, and no link is followed.

    A process must be able to start whatever happened to the folder of its log. One that is gone is made again; where
    that fails, what the process says is lost.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("%s: %s; what this process says is lost", path, error.strerror)
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


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
