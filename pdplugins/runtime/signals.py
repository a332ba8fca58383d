"""Named signals between the parts of one policy: within a process at once, between processes through small files.

Each process writes one file per part into a folder that the processes of one deployment on one node share, whole or
not at all, at most once a second. It reads the others' files when they have changed. What others wrote is not trusted:
names, numbers, sizes and counts are checked, and what is old is left out. Two deployments need two folders.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pdplugins.config import Config
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.signals import HearsSignals, Signals
from pdplugins.errors import ConfigError
from pdplugins.runtime.decision import Fault, Journal
from pdplugins.runtime.faults import STOPS, SafePolicy, one_line, raised
from pdplugins.runtime.planner import SafePlanner

log = logging.getLogger("pdplugins.signals")

PACE_S = 1.0
"""Seconds between two writes of a part's file, and between two looks at the folder."""
MOST_SIGNALS = 64
"""Signals of one part."""
MOST_PARTS = 64
"""Files that are read."""
MOST_ENTRIES = 1024
"""Entries of the folder that are looked at."""
MOST_BYTES = 16_384
"""Size of the largest file that is read."""
MARK_DIGITS = 18
"""Digits that tell the files of one board from those of others."""
FORGOTTEN_S = 3600.0
"""Age at which a file that some process left behind is removed."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}")
_FILE = re.compile(r"([a-z_]{1,32})\.([0-9]{1,20})\.signals\.json")


@dataclass(slots=True)
class _Said:
    """What one part said last."""

    said_s: float
    """When, by this process's clock."""
    signals: Signals


@dataclass(slots=True)
class _File:
    """Another process's file as it was when it was read last."""

    version: tuple[int, int, int]
    said: _Said | None
    """None when it held no signals, or old ones."""


class SignalBoard:
    """What the parts of one policy said last. For one thread.

    :param folder: where the processes of this deployment on this node meet; None: this process alone.
    :param fresh_s: age at which a signal is left out.
    :param wall: seconds since the epoch, to compare with the times of files.
    """

    def __init__(
        self, folder: Path | None = None, fresh_s: float = 10.0, wall: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._fresh_s = fresh_s
        self._wall = wall
        self._own: dict[str, _Said] = {}
        self._others: dict[str, _File] = {}
        self._written_s: dict[str, float] = {}
        self._looked_s: float | None = None
        self._mark = str(secrets.randbelow(10**MARK_DIGITS))
        """In the names of its files, and in no other board's: in containers every process may have the same pid."""
        self.faults: Counter[str] = Counter()
        """What went wrong: ``write``, ``read``, ``content`` (of another's file), ``signal`` (told by a part here)."""
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._tidy(folder)
            except OSError as error:
                raise ConfigError(f"signals.folder {folder}: {error.strerror}; name a folder to write in") from None

    def tell(self, part: str, signals: Signals, now_s: float) -> Signals:
        """Say the signals of one part of this process; return those that are good. Never raises.

        A signal with an improper name or a value that is not finite is left out and counted.

        :param part: the part's kind, ``planner`` for instance; it becomes part of a file name.
        """
        good = self._checked(signals, "signal")
        self._own[part] = _Said(now_s, good)
        written_s = self._written_s.get(part)
        if self._folder is not None and (written_s is None or not 0 <= now_s - written_s < PACE_S):
            self._written_s[part] = now_s
            self._write(part, good)
        return good

    def hear(self, part: str, now_s: float) -> dict[str, float]:
        """Return the fresh signals of all parts but `part` of this process. Never raises.

        Where two parts tell the same name, the one that spoke last is heard.
        """
        self._look(now_s)
        said = [said for name, said in self._own.items() if name != part]
        said += [file.said for file in self._others.values() if file.said is not None]
        fresh = [each for each in said if abs(now_s - each.said_s) <= self._fresh_s]  # a clock may have gone back
        signals: dict[str, float] = {}
        for each in sorted(fresh, key=lambda each: each.said_s):
            signals.update(each.signals)
        return signals

    def close(self) -> None:
        """Take back this process's files."""
        for part in self._written_s:
            with suppress(OSError):
                self._path(part).unlink()

    # --- files ----------------------------------------------------------------------------------------------------

    def _path(self, part: str) -> Path:
        assert self._folder is not None  # noqa: S101 - only called with a folder
        return self._folder / f"{part}.{self._mark}.signals.json"

    def _write(self, part: str, signals: Signals) -> None:
        path = self._path(part)
        scratch = path.with_suffix(".part")
        try:
            scratch.write_text(json.dumps({"schema": 1, "part": part, "signals": signals}), encoding="utf-8")
            scratch.replace(path)
        except OSError as error:
            self.count("write", f"{path}: {error.strerror}")

    def _look(self, now_s: float) -> None:
        """Read what has changed in the folder, if the last look is long enough ago."""
        if self._folder is None or (self._looked_s is not None and 0 <= now_s - self._looked_s < PACE_S):
            return
        self._looked_s = now_s
        found: dict[str, _File] = {}
        fresh = 0  # files of processes that have ended count for nothing
        try:
            with os.scandir(self._folder) as entries:
                for entry in islice(entries, MOST_ENTRIES):
                    if fresh < MOST_PARTS and self._is_others(entry.name):
                        found[entry.name] = seen = self._seen(entry, now_s)
                        fresh += seen.said is not None and abs(now_s - seen.said.said_s) <= self._fresh_s
        except OSError as error:
            self.count("read", f"{self._folder}: {error.strerror}")
        self._others = found

    def _is_others(self, name: str) -> bool:
        match = _FILE.fullmatch(name)
        return match is not None and match[2] != self._mark

    def _seen(self, entry: os.DirEntry[str], now_s: float) -> _File:
        """Return what `entry` says; it is opened only when it has changed."""
        before = self._others.get(entry.name)
        try:
            facts = entry.stat(follow_symlinks=False)
            version = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if before is not None and before.version == version:
                return before
            if not stat.S_ISREG(facts.st_mode) or abs(self._wall() - facts.st_mtime) > self._fresh_s:
                return _File(version, None)
            signals = self._content(entry.path)
        except OSError as error:
            self.count("read", f"{entry.path}: {error.strerror}")
            return _File((0, 0, 0), None)
        said_s = now_s - max(self._wall() - facts.st_mtime, 0.0)
        return _File(version, None if signals is None else _Said(said_s, signals))

    def _content(self, path: str) -> Signals | None:
        """Return the signals in a file; None when it holds something else. Raises OSError."""
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            raw = os.read(handle, MOST_BYTES + 1)
        finally:
            os.close(handle)
        if len(raw) > MOST_BYTES:
            self.count("content", f"{path}: more than {MOST_BYTES} bytes")
            return None
        try:
            data = json.loads(raw)
            signals = data["signals"] if data["schema"] == 1 else None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.count("content", f"{path}: {type(error).__name__}")
            return None
        return self._checked(signals, "content")

    def _tidy(self, folder: Path) -> None:
        """Remove files that processes left behind long ago."""
        with os.scandir(folder) as entries:
            for entry in islice(entries, MOST_ENTRIES):
                with suppress(OSError):
                    old = self._wall() - entry.stat(follow_symlinks=False).st_mtime > FORGOTTEN_S
                    ours = _FILE.fullmatch(entry.name.removesuffix(".part") + ".json" * entry.name.endswith(".part"))
                    if old and ours and entry.is_file(follow_symlinks=False):
                        Path(entry.path).unlink()

    # --- checks ---------------------------------------------------------------------------------------------------

    def _checked(self, signals: Any, fault: str) -> dict[str, float]:
        """Return what of `signals` has a proper name and a finite value, as plain floats."""
        good: dict[str, float] = {}
        try:
            for name, value in islice(signals.items(), MOST_SIGNALS):
                if _good(name, value):
                    good[str(name)] = float(value)
                else:
                    self.count(fault, f"{str(name)[:64]!r} has no proper name or no finite value")
        except BaseException as error:  # a part of a policy may tell anything
            if isinstance(error, STOPS):
                raise
            self.count(fault, f"{type(error).__name__}: {one_line(error)}")
        return good

    def count(self, kind: str, why: str) -> None:
        """Count a fault of a kind; log the first."""
        self.faults[kind] += 1
        if self.faults[kind] == 1:
            log.warning("signals, %s: %s; further faults of this kind are only counted", kind, why)


Parts = Mapping[Kind, object]
"""The policies of this process or their safe wrappers, one of each kind."""


def connect(parts: Parts, board: SignalBoard, now_s: float, journal: Journal | None = None) -> None:
    """Let each part tell its signals, then each part hear those of the others. Never raises.

    Hosts whose policies decide for each request call it once a second or so. Hosts of a planner or power controller
    call `hear` before a decision and `tell` after it. An error of a part is counted as ``part`` in the board's faults,
    and as a policy error in the journal, or without one among the faults of a safe policy.
    """
    tell(parts, board, now_s, journal)
    hear(parts, board, now_s, journal)


def tell(parts: Parts, board: SignalBoard, now_s: float, journal: Journal | None = None) -> None:
    """Let each part that has signals tell them, also to the metrics. Never raises."""
    for kind, part in parts.items():
        try:
            signals = _signals_of(part)
        except BaseException as error:  # a policy that fails must not stop serving
            if isinstance(error, STOPS):
                raise
            _failed(kind, part, error, board, journal)
            continue
        if signals is not None:
            told = board.tell(kind, signals, now_s)
            if journal is not None:
                journal.signals(kind, told)


def hear(parts: Parts, board: SignalBoard, now_s: float, journal: Journal | None = None) -> None:
    """Let each part that wants to know hear the fresh signals of the others. Never raises."""
    for kind, part in parts.items():
        policy = _policy_of(part)
        try:
            if isinstance(policy, HearsSignals):
                policy.on_signals(board.hear(kind, now_s), now_s)
        except BaseException as error:  # a policy that fails must not stop serving
            if isinstance(error, STOPS):
                raise
            _failed(kind, part, error, board, journal)


def _policy_of(part: object) -> object:
    return getattr(part, "policy", part) if isinstance(part, SafePolicy) else part


def _signals_of(part: object) -> Signals | None:
    """Return what a part tells: the signals of a planner's last plan, and those of a policy that tells some."""
    signals: Signals | None = getattr(_policy_of(part), "signals", None)
    if isinstance(part, SafePlanner):
        return {**part.last.signals, **(signals or {})}
    return signals


def _failed(kind: Kind, part: object, error: BaseException, board: SignalBoard, journal: Journal | None) -> None:
    why = raised(_policy_of(part), error)
    board.count("part", why)
    if isinstance(part, SafePolicy) and journal is None:
        part.tally.fault(Fault.POLICY_ERROR, why, error)  # with its other faults, in its own journal
    elif journal is not None:
        journal.fault(kind, Fault.POLICY_ERROR, why, error)


def _good(name: object, value: object) -> bool:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return False
    try:
        return not isinstance(value, str | bytes | bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def build_board(config: Config) -> SignalBoard:
    """Build the board that `config` describes. Raises ConfigError when its folder cannot be used."""
    return SignalBoard(config.signals.folder, config.signals.fresh_s)
