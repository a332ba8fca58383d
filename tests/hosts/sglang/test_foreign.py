"""Messages that are none of SGLang's."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pdplugins.hosts.sglang.foreign import GUARD, OwnMessages, drop_foreign_messages

OWN = [[GUARD, *[b"part"] * 7], [b"ABORT", b"7"], [GUARD, b"None", *[b"part"] * 20]]
FOREIGN = [[b""], [b"GET / HTTP/1.1"], [GUARD], [GUARD, b"1", b"host"], [b"\xff" * 40, b"", b"x"]]


class Socket:
    """A socket in which these messages wait."""

    def __init__(self, *messages: list[bytes]) -> None:
        self._messages = list(messages)
        self.closed = False

    def recv_multipart(self) -> list[bytes]:
        return self._messages.pop(0)

    def close(self) -> None:
        self.closed = True


def test_own_messages_come_as_they_are_and_foreign_ones_do_not(caplog: pytest.LogCaptureFixture) -> None:
    socket = OwnMessages(Socket(*FOREIGN[:2], OWN[0], *FOREIGN[2:], *OWN[1:]))
    with caplog.at_level(logging.WARNING):
        assert [socket.recv_multipart() for _ in OWN] == OWN
    assert socket.dropped == len(FOREIGN)
    assert [record.args[1] for record in caplog.records if record.args] == [1, 2, 4]


def test_the_thread_of_sglang_reads_from_it_and_can_do_all_else() -> None:
    class Manager:
        server_socket: Any = Socket(FOREIGN[0], OWN[0])

    def start(manager: Any) -> str:
        assert manager.server_socket.recv_multipart() == OWN[0]
        manager.server_socket.close()
        return "started"

    manager = Manager()
    socket = manager.server_socket
    assert drop_foreign_messages(start, manager) == "started"
    assert socket.closed
