"""Free ports for servers that start to listen only after a long start-up."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from itertools import islice

from pdplugins.errors import HostError

OURS = range(20_000, 32_000)
"""Ports below the ephemeral range (Linux: from 32,768). An engine takes dozens of ephemeral ports while it starts, and
one of them could be the port that another engine was given to listen on."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` ports on which nobody listens, in random order. Raises HostError when there are too few."""
    if len(found := list(islice(_free(host), count))) < count:
        raise HostError(
            f"no {count} free ports from {OURS[0]} to {OURS[-1]} on {host}; give an address of this machine, or end "
            "what listens there"
        )
    return found


def _free(host: str) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.sample(OURS, len(OURS)):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
        yield port
