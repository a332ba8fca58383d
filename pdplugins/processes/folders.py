"""Temporary folders of one process, private to its user, which the next process sweeps up when their owner was killed.

The owner holds a lock on a file in its folder. The kernel gives it back when the owner dies in any way, and shows it to
processes of all containers that share the folder; a process id means nothing in another one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "lock"


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that only this user may enter, and yield it. It is not removed. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    fresh = folder / f".{LOCK}"
    with fresh.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fresh.rename(folder / LOCK)  # it is locked from the moment that others can see it
        yield folder


def sweep(prefix: str) -> None:
    """Remove the folders of this user that `own_folder` has made for processes that are dead. Never raises."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with suppress(OSError):
                if folder.lstat().st_uid == os.getuid() and _abandoned(folder / LOCK):
                    shutil.rmtree(folder, ignore_errors=True)


def _abandoned(lock: Path) -> bool:
    """Tell whether nobody holds a lock. Raises OSError when there is none."""
    handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
