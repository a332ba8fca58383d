"""How fast this machine is: two fixed pieces of work on each core, again and again, in processes of their own.

A virtual machine is now faster, now slower, by up to a half within a minute, as others use the same hardware. What was
measured at one time is compared with what was measured at another one by how long these pieces took at both.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
EVERY_S = 0.1
"""A core does both pieces in about a hundredth of that."""
PART_S = 2.0
"""The clocks take the speed of so long for the same. In one second there are too few pieces: over 52 minutes, the means
of two halves of them correlated by 0.4 within the core and 0.8 in memory, and by 0.5 and 0.9 in two seconds."""
COMPUTED, STORED, READ = 6_000, 20_000, 3_000
"""Numbers that are added; entries of a dictionary, and how many of them are read: out of order, as Python reads its
objects."""


@dataclass(frozen=True)
class Speed:
    """Seconds of processor time that the pieces take."""

    compute_s: float
    """Work within the core."""
    memory_s: float
    """Work that waits for memory."""


class Clock:
    """A clock that goes slower while the machine is slower, and over all as fast as others.

    :param took_s: time that a piece of work takes in each part of the time, all parts as long.
    :param part_s: length of a part, s.
    """

    def __init__(self, took_s: Sequence[float], part_s: float) -> None:
        done = 1 / np.array(took_s, dtype=float)
        self._real = part_s * np.arange(len(done) + 1)
        self._own = np.append(0.0, np.cumsum(done)) * self._real[-1] / done.sum()

    def own_s(self, real_s: float) -> float:
        """Return what it shows after so many seconds."""
        return self._read(real_s, self._real, self._own)

    def real_s(self, own_s: float) -> float:
        """Return after how many seconds it shows that."""
        return self._read(own_s, self._own, self._real)

    @staticmethod
    def _read(at_s: float, here: Times, there: Times) -> float:
        """Beyond the last part it goes as others do."""
        return float(np.interp(at_s, here, there)) + max(at_s - here[-1], 0.0)


class Pieces:
    """Does the pieces of work on each core of this process while it is open.

    :param folder: where the times go.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {core: folder / f"speed-{core}.txt" for core in sorted(os.sched_getaffinity(0))}
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Pieces:
        for core, path in self._files.items():
            self._workers.append(subprocess.Popen([sys.executable, __file__, str(core), str(path)]))
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def speed(self, since_s: float, until_s: float) -> Speed:
        """Return the mean over all cores between two times of `time.monotonic`. Raises ValueError without any."""
        return Speed(*map(float, self._between(since_s, until_s)[:, 1:].mean(axis=0)))

    def clocks(self, since_s: float, until_s: float) -> tuple[Clock, Clock]:
        """Return the clocks of both pieces from `since_s` on."""
        rows, count = self._between(since_s, until_s), max(round((until_s - since_s) / PART_S), 1)
        part_s = (until_s - since_s) / count
        parts = ((rows[:, 0] - since_s) / part_s).astype(int)
        of_part = [rows[parts == part, 1:] for part in range(count)]
        means = [(some if len(some) else rows[:, 1:]).mean(axis=0) for some in of_part]
        return Clock([one[0] for one in means], part_s), Clock([one[1] for one in means], part_s)

    def _between(self, since_s: float, until_s: float) -> Times:
        """Return when each pair of pieces ended, and how long they took."""
        found = np.concatenate([_rows(path) for path in self._files.values()])
        found = found[(since_s <= found[:, 0]) & (found[:, 0] < until_s)]
        if not len(found):
            raise ValueError(f"no piece of work has ended between {since_s:.1f} and {until_s:.1f} s")
        return found


def _rows(path: Path) -> Times:
    """Return the rows that are whole."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [[*map(float, line.split())] for line in lines if line.endswith("\n")]
    return np.array(whole, dtype=float).reshape(-1, 3)


def _work(core: int, path: Path) -> None:
    """Do the pieces on one core until the process that wants them has gone."""
    os.sched_setaffinity(0, {core})
    stored, parent = {key: key for key in range(STORED)}, os.getppid()
    keys = random.Random(core).sample(range(STORED), STORED)
    with path.open("w", buffering=1) as out:
        while os.getppid() == parent:
            time.sleep(EVERY_S)
            some = keys[:READ]
            keys = keys[READ:] + some
            times = [time.thread_time()]
            for piece in (range(COMPUTED), map(stored.__getitem__, some)):
                sum(piece)
                times.append(time.thread_time())
            out.write(f"{time.monotonic()} {times[1] - times[0]} {times[2] - times[1]}\n")


if __name__ == "__main__":
    _work(int(sys.argv[1]), Path(sys.argv[2]))
