"""Reads answers of workers, which may be of any length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pdplugins.gateway.errors import AnswersTooLongError

UNKNOWN_TYPE = "application/octet-stream"


class TooLongError(ValueError):
    """What comes is longer than it may be."""


class Room:
    """The bytes of the answers that are held at a time.

    :param most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> None:
        """Take room, which `give` gives back. Raises AnswersTooLongError."""
        if size > self._left:
            raise AnswersTooLongError
        self._left -= size

    def give(self, size: int) -> None:
        """Give room back."""
        self._left += size


def content_type(said: str) -> str:
    """Return the type that a worker gives its answer, if it can be told a client: a control character cannot."""
    return said if said.isascii() and said.isprintable() else UNKNOWN_TYPE


async def read_whole(readany: Callable[[], Awaitable[bytes]], most_bytes: int) -> bytes:
    """Return all that `readany` gives until it gives nothing. Raises TooLongError, or what `readany` raises."""
    parts: list[bytes] = []
    size = 0
    while part := await readany():
        size += len(part)
        if size > most_bytes:
            raise TooLongError(f"longer than {most_bytes} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
