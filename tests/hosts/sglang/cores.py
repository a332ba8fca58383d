"""The cores that a server takes, and which of its threads do."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

Threads = dict[tuple[str, int, int], int]
"""Ticks of CPU time by name, process and id of each thread."""


def busy_share(session: int, over_s: float = 2.0) -> float:
    """Cores that the processes of a session take."""
    before = threads(session)
    time.sleep(over_s)
    return sum(shares(before, threads(session), over_s).values())


def busiest(session: int, over_s: float = 1.0) -> list[str]:
    """The threads of a session that take more than a tenth of a core, with what they take."""
    before = threads(session)
    time.sleep(over_s)
    taken = shares(before, threads(session), over_s)
    return [
        f"{name} {thread} of {process}: {share:.2f}" for (name, process, thread), share in taken.items() if share > 0.1
    ]


def threads(session: int) -> Threads:
    return dict(_threads(session))


def shares(before: Threads, after: Threads, over_s: float) -> dict[tuple[str, int, int], float]:
    """Cores that each thread took; a process that has ended counts no more."""
    per_s = os.sysconf("SC_CLK_TCK")
    return {thread: (ticks - before.get(thread, 0)) / per_s / over_s for thread, ticks in after.items()}


def _threads(session: int) -> Iterator[tuple[tuple[str, int, int], int]]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(_fields(process)[1][3]) != session:
                continue
            for thread in (process / "task").iterdir():
                name, fields = _fields(thread)
                yield (name, int(process.name), int(thread.name)), int(fields[11]) + int(fields[12])


def _fields(folder: Path) -> tuple[str, list[str]]:
    """The name of a process or thread, and what /proc/PID/stat says behind it."""
    head, _, rest = (folder / "stat").read_text().rpartition(")")
    return head.partition("(")[2], rest.split()
