"""The decision log: JSON Lines, what the policies of one process saw and answered.

A run starts with one header line (``{"schema": 2, "config": …}``) and goes on with one line per decision that is kept,
which names the kind of policy and the decision's number within its kind; a gap in the numbers is what was not kept.
Runs append to the same file; one process writes it. A file that has grown to its limit becomes ``FILE.1``, and the run
goes on in a new file whose header repeats the run's. Numbers are written so that they read back exactly; a number that
is not finite is written the way Python's json does (``NaN``, ``Infinity``). A line torn by a crash is closed by the
next run and skipped by readers. `pdplugins.runtime.decision_reader` reads all this.
"""

from __future__ import annotations

import errno
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pdplugins
from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import ScalePlan
from pdplugins.errors import ConfigError, PdpluginsError
from pdplugins.runtime.decision import Decision
from pdplugins.runtime.records import answer_data, exact, seen_data

SCHEMA = 2
_HEADER = b'{"schema":'
"""How the first line of a run begins."""
MOST_BYTES = 256 * 2**20
"""Size at which a log is moved to ``FILE.1``, unless told otherwise."""


class DecisionLog:
    """Appends the decisions of one run to a file, line by line. Use as a context manager, or call `close`.

    :param config: what the policies were built from; replaying needs it.
    :param initial: the planner's plan before its first decision; None without a planner.
    :param clock: wall-clock seconds since the epoch.
    :param shadow: nobody follows what is decided.
    :param most_bytes: size at which the file becomes ``FILE.1``; the two together hold twice as much at most.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        deployment: Deployment,
        initial: ScalePlan | None = None,
        clock: Callable[[], float] = time.time,
        most_bytes: int = MOST_BYTES,
        *,
        shadow: bool = False,
    ) -> None:
        if path == Path("-"):
            raise ConfigError("decision log -: it is appended to a file, and moved when it is full; name a file")
        path = led_to(path)
        self._path = path
        self._clock = clock
        self._most_bytes = most_bytes
        self._shadow = shadow
        self._header = self._made(config, deployment, initial)
        self._owed: dict[str, Any] | None = self._header
        """The header that is to be written before anything else: the disk was full, or the file is new."""
        try:
            self._file, self._size = _open_after_torn_line(path)
            self._pay()
        except OSError as error:
            why = error.strerror if path.parent.is_dir() else f"there is no folder {path.parent}"
            raise ConfigError(f"decision log {path}: {why}; choose a file that can be written") from None

    def _made(self, config: Config, deployment: Deployment, initial: ScalePlan | None) -> dict[str, Any]:
        """Return the header of a run that begins now."""
        at = self._now()
        return {
            "schema": SCHEMA,
            "pdplugins": pdplugins.__version__,
            "at": at,
            "run": f"{at} {os.getpid()}",
            "planner": config.planner.name if config.planner else None,
            "config": config.model_dump(mode="json"),
            "deployment": _limits(deployment),
            "initial": None if initial is None else asdict(initial),
            **({"shadow": True} if self._shadow else {}),
        }

    def begin(self, config: Config, deployment: Deployment) -> None:
        """Begin another run, as the policies have been built anew. Raises OSError when the disk does."""
        self._header = self._owed = self._made(config, deployment, None)
        self._pay()

    def write(self, decision: Decision[Any], seen: Mapping[str, Any], number: int = 1) -> None:
        """Append one decision, or nothing. Raises OSError when the disk does.

        :param number: its number within its kind in this run, from 1.
        """
        if self._size >= self._most_bytes:
            self._rotate()
        self._pay()
        self._put(
            {
                "kind": decision.kind,
                "n": number,
                "at": self._now(),
                "seen": seen_data(decision.kind, seen, decision.answer),
                "answer": answer_data(decision.kind, decision.answer),
                "fault": decision.fault,
                "step_s": decision.step_s,
            }
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pay(self) -> None:
        """Write the header that is owed. Raises OSError; then it stays owed."""
        if self._owed is not None:
            self._put(self._owed)
            self._owed = None

    def _put(self, data: Mapping[str, Any]) -> None:
        line = json.dumps(data, separators=(",", ":")).encode() + b"\n"
        written = self._file.write(line)
        if written != len(line):  # a full disk stores only the part that fits
            self._file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(line)

    def _rotate(self) -> None:
        """Move the file to ``FILE.1`` and begin a new one. Raises OSError; then the next write tries again."""
        if not self._path.is_file() and self._path.exists():
            return  # a pipe or a device holds nothing
        with suppress(FileNotFoundError):
            self._path.replace(old_part(self._path))
        file = self._path.open("ab", buffering=0)
        self._file.close()
        self._file, self._size = file, 0
        self._owed = self._owed or {**self._header, "continued": True}

    def _now(self) -> str:
        seconds, rest = divmod(self._clock(), 1)
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(rest * 1000):03d}Z"


@contextmanager
def none_of_refused(path: Path | None) -> Iterator[None]:
    """Leave the log at `path` as it was before a run that is refused before its first decision is kept.

    A host opens its log before it knows that it can serve: before it listens, or builds what takes the journal.
    """
    before = None if path is None else _size(led_to(path))
    try:
        yield
    except PdpluginsError:
        if path is not None:
            with suppress(OSError):
                _take_back(led_to(path), before)
        raise


def _size(path: Path) -> int | None:
    """Return the size of a file; None where there is none."""
    with suppress(OSError):
        return path.stat().st_size
    return None


def _take_back(path: Path, before: int | None) -> None:
    """Remove the header that alone was written to a log whose size was `before`; None if the log was not there."""
    if not path.is_file():  # a pipe or a device keeps what it got
        return
    with path.open("rb+") as file:
        file.seek(before or 0)
        line = file.readline()
        header = file.readline() if line == b"\n" else line  # a torn line was closed first
        if not header.startswith(_HEADER) or file.read(1):
            return
        if before is None:
            path.unlink()
        else:
            file.truncate(before)


def led_to(path: Path) -> Path:
    """Return the file that a link leads to, beside which the old part is; any other path as it is."""
    with suppress(OSError):  # whoever opens it says what is wrong
        return path.resolve() if path.is_symlink() else path
    return path


def old_part(path: Path) -> Path:
    """Return where a log goes that has grown to its limit."""
    return path.parent / f"{path.name}.1"


def outputs_of(option: str, path: Path | None) -> dict[str, Path | None]:
    """Return the files that a log is written to, as outputs of `pdplugins.files.check_apart`.

    :param option: that names the log.
    """
    return {option: path, f"{option}, its old part": None if path is None else old_part(led_to(path))}


def _limits(deployment: Deployment) -> dict[str, Any]:
    names = ("gpu_budget", "prefill_tp", "decode_tp", "startup_s", "max_batch", "kv_tokens")
    return {"slo": exact(deployment.slo), **{name: getattr(deployment, name) for name in names}}


def _open_after_torn_line(path: Path) -> tuple[io.FileIO, int]:
    """Open `path` to append whole lines, ending the line that a crash may have left open; return its size too."""
    if path.is_file():
        with path.open("rb+") as raw:
            if raw.seek(0, os.SEEK_END):
                raw.seek(-1, os.SEEK_END)
                if raw.read(1) != b"\n":
                    raw.write(b"\n")
    file = path.open("ab", buffering=0)
    return file, os.fstat(file.fileno()).st_size
