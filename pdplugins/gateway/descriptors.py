"""File descriptors: as many as the system allows, and how many connections they are enough for."""

from __future__ import annotations

import resource

RESERVED = 128
"""Descriptors for everything but requests: listeners, logs, polls, connections that are refused."""
PER_CONNECTION = 3
"""One for the client, and one for each leg of a pair."""
UNLIMITED = 2**20


def raise_limit() -> int:
    """Raise this process's soft limit of open files to its hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def connections_within(descriptors: int) -> int:
    """Return the connections of clients that so many descriptors are enough for."""
    return max((descriptors - RESERVED) // PER_CONNECTION, 16)
