"""Gateway processes on one port tell each other of sessions, so that the next round of one may come to any of them.

A message is a datagram on a Unix socket in a folder of the supervisor's. It is sent when an answer ends, and is there
before its client can ask again. One that does not arrive costs the prefix cache of one round, and is counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.sessions import Session, Sessions
from pdplugins.gateway.share import Share

MOST_BYTES = 65_536
"""Of one message."""
MOST_AT_ONCE = 1000
"""Messages that are read before anybody else is served."""
MOST_UNSENT = 1_000
"""Messages that wait for a process that does not keep up."""
AGAIN_S = 0.003
"""Pause before those are sent again: the kernel keeps ten or so for a process that is busy."""


class _Told(msgspec.Struct, array_like=True):
    name: str
    bound_worker: str | None
    tokens: int
    prefix: tuple[int, int]
    held: dict[str, int]


class Peers:
    """Keeps the sessions of this process and those of the others the same."""

    def __init__(self, share: Share, sessions: Sessions, metrics: GatewayMetrics) -> None:
        self._sessions = sessions
        self._metrics = metrics
        self._others = [_path(share, index) for index in range(share.count) if index != share.index]
        path = _path(share, share.index)
        Path(path).unlink(missing_ok=True)  # of a process that has died
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(path)
        self._unsent: deque[tuple[str, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        sessions.on_change = self._tell

    def start(self) -> Callable[[], None]:
        """Hear the others on the running loop; return what ends that."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._hear)

        def stop() -> None:
            self._sessions.on_change = None
            if self._timer is not None:
                self._timer.cancel()
            loop.remove_reader(self._socket)
            self._socket.close()

        return stop

    def _tell(self, name: str, session: Session) -> None:
        told = _Told(name, session.bound_worker, session.tokens, session.prefix, session.held)
        message = msgspec.msgpack.encode(told)
        for other in self._others:
            if self._unsent or not self._sent(other, message):
                self._later(other, message)

    def _sent(self, other: str, message: bytes) -> bool:
        """Send a message; False when it has to wait."""
        try:
            self._socket.sendto(message, other)
        except BlockingIOError:
            return False
        except OSError:  # it starts anew
            self._metrics.overload("peers")
        return True

    def _later(self, other: str, message: bytes) -> None:
        if len(self._unsent) >= MOST_UNSENT:
            self._unsent.popleft()
            self._metrics.overload("peers")
        self._unsent.append((other, message))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._send_unsent)

    def _send_unsent(self) -> None:
        """Send what waits. A process that does not keep up holds up nobody else's messages."""
        self._timer, waiting, behind = None, list(self._unsent), set[str]()
        self._unsent.clear()
        for other, message in waiting:
            if other in behind or not self._sent(other, message):
                behind.add(other)
                self._later(other, message)

    def _hear(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                message = self._socket.recv(MOST_BYTES)
            except BlockingIOError:
                return
            try:
                told = msgspec.msgpack.decode(message, type=_Told)
            except msgspec.MsgspecError as error:
                self._metrics.fault("gateway_error", error, error)
                continue
            self._sessions.put(told.name, Session(told.bound_worker, told.tokens, told.prefix, told.held))


def _path(share: Share, index: int) -> str:
    return str(share.folder / str(index))
