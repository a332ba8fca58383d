"""The sockets that processes listen on, as the kernel shows them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

LISTENS = "0A"


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses and ports on which any of the processes listens over TCP."""
    mine = {inode for pid in pids for inode in _inodes(pid)}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {_address(row[1]) for row in rows if row[3] == LISTENS and row[9] in mine}


def _inodes(pid: int) -> Iterable[str]:
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = str(handle.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]


def _address(text: str) -> tuple[str, int]:
    """The kernel writes an address as 32-bit words in the machine's byte order."""
    raw, port = text.split(":")
    words = [struct.pack("=I", int(raw[at : at + 8], 16)) for at in range(0, len(raw), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)), int(port, 16)


def beyond_this_machine(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Where the processes listen for others than those of this machine."""
    return {(host, port) for host, port in listening(pids) if not ip_address(host).is_loopback}
