"""Several gateway processes on one port: starts them, starts one anew that dies, and ends them together."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pdplugins.errors import ConfigError, cannot_listen
from pdplugins.gateway.share import Share

log = logging.getLogger("pdplugins.gateway")

MOST_PROCESSES = 64
YOUNG_S = 10.0
"""A first process that ends by itself so soon was started wrongly, and all end. A later one only waits longer."""
PAUSE_S = 0.1
"""Pause between two looks at the processes."""
AGAIN_S, MOST_AGAIN_S = 1.0, 30.0
"""Pause before a process that died is started again. It doubles with each one that dies young, up to the second."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """The processes of one gateway.

    :param words: the command line of each of them.
    :param reloads: whether SIGHUP lets them read files again; else it ends them, as when their terminal closes.
    """

    def __init__(self, words: Sequence[str], count: int, *, reloads: bool = False) -> None:
        self._words = list(words)
        self._reloads = reloads
        self._folder = Path(tempfile.mkdtemp(prefix="pdplugins-peers-"))  # this user's only
        key = secrets.token_hex(16)
        self._shares = [Share(index, count, self._folder, os.getpid(), key) for index in range(count)]
        self._running: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._pauses: dict[int, float] = {}
        """By process that has once lived longer than `YOUNG_S`, or was killed: the pause before it starts again."""
        self._due: dict[int, float] = {}
        """By process that is to start again: when."""
        self._stops = False
        self._code = 0

    def run(self) -> int:
        """Serve until a signal ends all of them. Return the exit code: the first one that is not 0."""
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        try:
            for share in self._shares:
                if not self._stops:
                    self._start(share)
            while self._running or (self._due and not self._stops):
                for share in self._shares:
                    self._look(share)
                time.sleep(PAUSE_S)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._code

    def _start(self, share: Share) -> None:
        # Of a group of its own: a Ctrl-C of the terminal comes once, from here.
        with reloads_later():
            process = subprocess.Popen(self._words, env=os.environ | share.environment(), start_new_session=True)
        self._running[share.index] = process, time.monotonic()
        if self._stops:  # the signal came just before
            process.terminate()

    def _look(self, share: Share) -> None:
        """Start a process again that has died, once its pause is over.

        One that ends by itself at its beginning was started wrongly, and all end. One that a signal has killed then, as
        for want of memory, starts again as at any other time.
        """
        index, now_s = share.index, time.monotonic()
        if index in self._due:
            if not self._stops and now_s >= self._due[index]:
                self._start_again(share, now_s)
            return
        if index not in self._running:
            return
        process, began_s = self._running[index]
        if (code := process.poll()) is None:
            return
        del self._running[index]
        young = now_s - began_s < YOUNG_S
        if self._stops or (young and code >= 0 and index not in self._pauses):
            self._code = self._code or (code if code >= 0 else 128 - code)
            if not self._stops:
                self._pass_on(signal.SIGTERM, None)
            return
        pause_s = min(2 * self._pauses[index], MOST_AGAIN_S) if young and index in self._pauses else AGAIN_S
        log.warning("process %d of %d died with code %d; it starts anew in %g s", index + 1, share.count, code, pause_s)
        self._pauses[index], self._due[index] = pause_s, now_s + pause_s

    def _start_again(self, share: Share, now_s: float) -> None:
        try:
            self._start(share)
        except OSError as error:  # no memory or no process is left; the others serve on
            log.warning("process %d of %d cannot start: %s", share.index + 1, share.count, error)
            self._due[share.index] = now_s + MOST_AGAIN_S
        else:
            del self._due[share.index]

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and not self._reloads:
            number = signal.SIGTERM
        self._stops = self._stops or number != signal.SIGHUP
        for process, _ in self._running.values():
            process.send_signal(number)


@contextmanager
def reloads_later() -> Iterator[None]:
    """Put off SIGHUP here, and in a process that is started meanwhile until it calls `take_reloads`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        take_reloads()


def take_reloads() -> None:
    """Take SIGHUP from now on, also one that was put off."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def supervise(count: int, host: str, port: int, *, reloads: bool = False) -> int:
    """Run this process's own command line in `count` processes; return the exit code. Raises ConfigError, HostError."""
    if not 1 < count <= MOST_PROCESSES:
        raise ConfigError(f"--processes {count}: from 2 to {MOST_PROCESSES}")
    if not port:
        raise ConfigError("--processes: they share a port; name it with --port")
    _check_free(host, port)
    logging.basicConfig(level=logging.INFO)
    return Supervisor([sys.executable, *sys.argv], count, reloads=reloads).run()


def _check_free(host: str, port: int) -> None:
    """Raise HostError where nobody can listen, or somebody does: processes of a user may share a port unknowingly."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except (OSError, UnicodeError) as error:
        raise cannot_listen("gateway", host, port, error) from None
