"""Random bytes for names and rooms: a request takes some three times, and each would be a call of the system."""

from __future__ import annotations

import os

DRAWN = 4096
"""Bytes that are drawn from the system at once."""


class Randomness:
    """Bytes from the system's generator, each given once. One thread takes them."""

    def __init__(self) -> None:
        self._drawn = b""
        self._taken = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, at most `DRAWN`."""
        if self._taken + size > len(self._drawn):
            self._drawn, self._taken = os.urandom(DRAWN), 0
        taken = self._taken
        self._taken = taken + size
        return self._drawn[taken : taken + size]


take = Randomness().take


def fresh_name() -> str:
    """Return a name that nobody can guess."""
    return take(16).hex()
