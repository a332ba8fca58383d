"""What outlives the process that sets caps: the lock that keeps a second one away, and the caps that were there before.

The caps are on disk before the first change, and go when they have been put back. So the next start after a kill, or
``pdplugins power restore``, knows them. A restart of the machine makes the file void: drivers have forgotten our caps.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdplugins.errors import ConfigError, HostError, one_line

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOST_BYTES = 2**20
SCHEMA = 1
"""Of the file."""


class SavedCaps:
    """The folder of one node. Taking it takes its lock, which the kernel gives back when the process ends.

    Raises HostError when another process has the lock, ConfigError when the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "caps.json"
        lock = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            self._handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise ConfigError(
                f"node.state {folder}: {error.strerror}; start as root, or name a folder of your own"
            ) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = os.pread(self._handle, 20, 0).decode(errors="replace").strip() or "?"
            self.close()
            raise HostError(
                f"process {one_line(other)} sets the caps of this node already (it has {lock}); stop it first"
            ) from None
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, str(os.getpid()).encode(), 0)
        except OSError as error:
            self.close()
            raise self._no_room(error) from None

    def load(self) -> dict[str, float]:
        """Return what `saved_caps` returns for this folder."""
        return saved_caps(self._path.parent)

    def save(self, caps_w: Mapping[str, float]) -> None:
        """Write the caps down, so that they are on the disk when this returns. Raises ConfigError."""
        try:
            write_state(self._path, {"schema": SCHEMA, "boot": boot(), "caps_w": dict(caps_w)})
        except OSError as error:
            raise self._no_room(error) from None

    def clear(self) -> None:
        """Forget them: they have been put back."""
        self._path.unlink(missing_ok=True)

    def _no_room(self, error: OSError) -> ConfigError:
        return ConfigError(f"node.state {self._path.parent}: {error.strerror}; make room there, or name another folder")

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._handle)


def saved_caps(folder: Path) -> dict[str, float]:
    """Return the caps in watts that were there before ours, by UUID; none when there is nothing to put back.

    Raises ConfigError when the file holds something else.
    """
    path = folder / "caps.json"
    try:
        data = read_state(path)
        if data["boot"] != boot():
            return {}
        schema, caps_w = data["schema"], {str(uuid): _watts(watts) for uuid, watts in data["caps_w"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read ({one_line(error, 60)}); set the caps by hand, then remove it"
        ) from None
    if schema != SCHEMA:
        raise ConfigError(f"{path} is of another version of pdplugins; restore with that one, or set the caps by hand")
    if not all(math.isfinite(watts) and watts > 0 for watts in caps_w.values()):
        raise ConfigError(f"{path} holds a cap that is none; set the caps by hand, then remove it")
    return caps_w


def read_state(path: Path) -> Any:
    """Return what a file of ours holds. No link is followed, and no pipe waited for. Raises OSError or ValueError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        return json.loads(file.read(MOST_BYTES))


def write_state(path: Path, data: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a file of ours, whole or not at all. Raises OSError.

    A link in its place is replaced: whoever can write to the folder shall not have this process, which may be root's,
    write to another file.

    :param durable: return only when it is on the disk. One that is void after a restart of the machine need not wait.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    if durable:
        _to_disk(path.parent)


def _to_disk(folder: Path) -> None:
    """Return once the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _watts(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number of watts")
    return float(value)


def boot() -> str:
    """Return the name of this start of the machine."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
