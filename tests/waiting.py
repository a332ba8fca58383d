"""Waiting for a state, and whether a process runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], seconds: float = 60.0, *, pause_s: float = 0.05) -> bool:
    """Wait until something holds, so long at most; tell whether it does."""
    end_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(pause_s)
    return True


def runs(pid: int) -> bool:
    """Tell whether a process is there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
