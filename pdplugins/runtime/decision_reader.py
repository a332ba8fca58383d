"""Reads decision logs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, Field, ValidationError

from pdplugins.config import first_error
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import PlannerView, ScalePlan, Traffic
from pdplugins.contracts.power import Flip, GpuView, PowerPlan
from pdplugins.contracts.workers import Pool, Role, WorkerLoad
from pdplugins.errors import ConfigError, PdpluginsError, one_line, shown
from pdplugins.files import is_file, is_folder
from pdplugins.runtime.decision_log import SCHEMA, led_to, old_part
from pdplugins.runtime.records import WHOLE

MOST_LINE_BYTES = 2**24
"""Longest line. What a planner sees of a thousand workers takes a quarter of a megabyte."""
MOST_TORN = 1000
"""Torn lines in a row. Each crash leaves one, and a device has no end of them."""
_NAME_ONE = "name a decision log, as --decision-log FILE writes it"


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision, read back.

    What planners and power controllers saw and answered has its types again; of the other kinds it is plain data.
    """

    kind: Kind
    number: int
    """Its number within its kind in this run, from 1."""
    at: str
    """Wall-clock time in UTC, ISO 8601."""
    seen: Mapping[str, Any]
    answer: Any
    fault: str | None
    step_s: float
    where: str = field(default="", compare=False)
    """File and line number."""

    @property
    def view(self) -> PlannerView | None:
        """What a planner or power controller saw; None when the host could not read its observations."""
        view = self.seen.get("view")
        return view if isinstance(view, PlannerView) else None

    @property
    def plan(self) -> ScalePlan:
        """What a planner answered."""
        if not isinstance(self.answer, ScalePlan):
            raise TypeError(f"a {self.kind} answers with no plan")
        return self.answer

    @property
    def now_s(self) -> float | None:
        """The host's time of the decision."""
        return self.view.now_s if self.view is not None else self.seen.get("now_s")


@dataclass(slots=True)
class Run:
    """One run of one process, read back."""

    header: Mapping[str, Any]
    entries: list[Entry] = field(default_factory=list)
    where: str = ""
    """File and line number of the header."""

    @property
    def initial(self) -> ScalePlan | None:
        """The plan before the first decision; None where there was no planner."""
        initial = self.header["initial"]
        return None if initial is None else ScalePlan(**initial)

    def kind(self, kind: Kind) -> list[Entry]:
        """Return the decisions of one kind of policy."""
        return [entry for entry in self.entries if entry.kind is kind]


class _Line(BaseModel):
    """What every line of schema 2 but the header has."""

    kind: Kind
    n: int = Field(strict=True)
    at: str
    seen: dict[str, Any]
    answer: Any
    fault: str | None
    step_s: float


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn whatever goes wrong with a line inside into a ConfigError that names it: anyone may have edited the file."""
    try:
        yield
    except PdpluginsError:
        raise
    except ValidationError as error:
        raise ConfigError(f"{where}: not a line of a decision log ({first_error(error, _Line)})") from None
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error, 100)}"
        raise ConfigError(f"{where}: not a line of a decision log ({why})") from None


def read(path: Path) -> list[Run]:
    """Read every run of a decision log and of its old part. Raises ConfigError, naming the line, when it is not one."""
    if is_folder(path):
        raise ConfigError(f"{path}: is a folder; name a decision log in it")
    runs: list[Run] = []
    for run in _read_parts(path):
        same = runs and run.header.get("continued") and runs[-1].header.get("run") == run.header.get("run")
        if same:
            runs[-1].entries.extend(run.entries)
        else:
            runs.append(run)
    if not runs:
        raise ConfigError(f"{path}: no run in it; {_NAME_ONE}")
    return runs


def view_from(data: Mapping[str, Any]) -> PlannerView:
    """Build a view from its plain data."""
    traffic = data["traffic"]
    return PlannerView(
        data["now_s"],
        None if traffic is None else Traffic(**traffic),
        _pool(data["prefill"]),
        _pool(data["decode"]),
    )


def _read_parts(path: Path) -> list[Run]:
    """Read the old part of a log, if there is one, and the log itself.

    Both are open before either is read: that takes a while, and the log may become the old part meanwhile.
    """
    older = old_part(led_to(path))
    with _open(path) as new:
        if not is_file(older):
            return _read_part(path, new)
        with _open(older) as old:
            moved = os.path.sameopenfile(new.fileno(), old.fileno())
            return [*([] if moved else _read_part(older, old)), *_read_part(path, new)]


def _read_part(path: Path, file: BinaryIO) -> list[Run]:
    runs: list[Run] = []
    torn: int | None = None
    for number, line in _lines(path, file):
        data, where = _object(line), f"{path}:{number}"
        if data is None:
            torn = torn or number
            if number - torn >= MOST_TORN:
                raise ConfigError(f"{path}:{torn}: not a line of a decision log; {_NAME_ONE}")
        elif "schema" in data:
            runs.append(Run(_header(data, where), where=where))
            torn = None
        elif torn or not runs:
            raise ConfigError(f"{path}:{torn or number}: not a line of a decision log; {_NAME_ONE}")
        else:
            with reading(where):
                runs[-1].entries.append(_entry(data, runs[-1], where))
    return runs


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: {error.strerror}; {_NAME_ONE}")


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line)."""
    try:
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES + 1), b""), 1):
            if len(line) > MOST_LINE_BYTES:
                raise ConfigError(f"{path}:{number}: longer than any line of a decision log")
            yield number, line
    except OSError as error:
        raise _unreadable(path, error) from None


def _header(data: dict[str, Any], where: str) -> dict[str, Any]:
    if type(data["schema"]) is not int or data["schema"] != SCHEMA:
        raise ConfigError(f"{where}: schema {shown(data['schema'])}; this pdplugins reads schema {SCHEMA}")
    return data


def _entry(data: Mapping[str, Any], run: Run, where: str) -> Entry:
    """Return one decision. Raises anything when `data` is none."""
    line = _Line.model_validate(data)
    return _typed(Entry(line.kind, line.n, line.at, line.seen, line.answer, line.fault, line.step_s, where))


def _typed(entry: Entry) -> Entry:
    """Return an entry of a kind that is kept whole with its types."""
    if entry.kind not in WHOLE:
        return entry
    data = entry.seen.get("view")
    view = None if data is None else view_from(data)
    if entry.kind is Kind.PLANNER:
        return replace(entry, seen={"view": view}, answer=ScalePlan(**entry.answer))
    gpus = tuple(GpuView(**{**gpu, "role": Role(gpu["role"])}) for gpu in entry.seen["gpus"])
    seen = {"gpus": gpus, "view": view, "budget_w": entry.seen.get("budget_w")}
    return replace(entry, seen=seen, answer=None if entry.answer is None else _power_plan(entry.answer))


def _power_plan(data: Mapping[str, Any]) -> PowerPlan:
    caps_w = {int(gpu): cap_w for gpu, cap_w in data["caps_w"].items()}
    flips = tuple(Flip(flip["gpu"], Role(flip["role"])) for flip in data["flips"])
    return PowerPlan(caps_w, flips, data["reason"])


def _pool(data: Mapping[str, Any]) -> Pool:
    return Pool(**{**data, "loads": tuple(WorkerLoad(**load) for load in data["loads"])})


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object in `line`; None when it is torn."""
    try:
        data = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
