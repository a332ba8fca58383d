"""Drops messages that do not come from SGLang, which would end the thread that serves the prefill role.

A prefill server hears from decode servers over ZMQ, in a thread that asserts that each message is one of theirs. Any
other message, from a port scanner or a server of another version, ends that thread, and every later request waits until
SGLang's time-out. Here such messages are dropped and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

TARGET = "sglang.srt.disaggregation.nixl.conn.NixlKVManager._start_bootstrap_thread"
GUARD = b"NixlMsgGuard"
"""Begins the messages of a decode server that NIXL's backend speaks for."""
GUARDED_PARTS = 7
"""Parts that follow it in each of these messages, at least."""
OTHERS = (b"ABORT", b"WATERMARK", b"STAGING_RSP")
"""First parts of messages that SGLang itself checks when it reads them."""


def drop_foreign_messages(original: Callable[..., Any], manager: Any) -> Any:
    """Let SGLang's thread read what comes from decode servers, and nothing else."""
    manager.server_socket = OwnMessages(manager.server_socket)
    return original(manager)


class OwnMessages:
    """A ZMQ socket from which only messages of SGLang's own come."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.dropped = 0

    def recv_multipart(self, *arguments: Any, **keywords: Any) -> list[bytes]:
        """Return the next message of a decode server."""
        while True:
            message: list[bytes] = self._socket.recv_multipart(*arguments, **keywords)
            if _is_own(message):
                return message
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                size = sum(map(len, message))
                log.warning("pdplugins: dropped a foreign message of %d bytes (%d so far)", size, self.dropped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _is_own(message: list[bytes]) -> bool:
    return message[0] in OTHERS or (message[0] == GUARD and len(message) >= 1 + GUARDED_PARTS)
