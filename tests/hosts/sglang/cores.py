"""The cores that a server takes, and which of its threads do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

RESTS = 1 / 2
"""What a server may take that has nothing to run, of what a thread that spins takes in the same seconds."""
CROWDED = 0.5
"""Of a core: where a thread that spins gets less, what others need weighs more, and less of a pause shows."""
RESTS_CROWDED = 2 / 3
Threads = dict[tuple[str, int, int], int]
"""Ticks of CPU time by name, process and id of each thread."""


def rests(session: int, looks: int = 10) -> bool:
    """Tell whether the processes of a session leave their core to others.

    On a machine without a free core the thread that spins gets little, so one look of several is enough: a server that
    polls without a pause takes as much as that thread at each of them.
    """
    for _ in range(looks):
        taken, control = cores_taken(session)
        if taken < control * (RESTS if control > CROWDED else RESTS_CROWDED):
            return True
    return False


def cores_taken(session: int, over_s: float = 2.0) -> tuple[float, float]:
    """Cores that the processes of a session take, and those that a thread that spins takes in the same seconds."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as spins:
        try:
            before = [threads(one) for one in (session, spins.pid)]
            time.sleep(over_s)
            after = [threads(one) for one in (session, spins.pid)]
        finally:
            spins.kill()
    taken, control = (sum(shares(*both, over_s).values()) for both in zip(before, after, strict=True))
    return taken, control


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
