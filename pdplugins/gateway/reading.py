"""Reads answers of workers, which may be of any length."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pdplugins.gateway.errors import AnswersTooLongError

UNKNOWN_TYPE = "application/octet-stream"
LONGEST_TYPE = 200
"""Characters of the type of an answer. Clients refuse a head with a long line."""


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


class Hold:
    """The room that one answer takes, which it gives back at the end."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def take(self, size: int) -> None:
        """Take room for the next bytes. Raises AnswersTooLongError."""
        self._room.take(size)
        self._size += size

    def give(self) -> None:
        """Give all of it back."""
        self._room.give(self._size)
        self._size = 0

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.give()


def content_type(said: str) -> str:
    """Return the type that a worker gives its answer, if it can be told a client: a control character cannot."""
    return said if len(said) <= LONGEST_TYPE and said.isascii() and said.isprintable() else UNKNOWN_TYPE


def is_json(data: bytes) -> bool:
    """Tell whether an answer begins and ends as an object or a list does: to parse it would take long."""
    return data[:1] in (b"{", b"[") and data.rstrip()[-1:] in (b"}", b"]")


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
