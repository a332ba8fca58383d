"""The decision log: JSON Lines, everything a planner saw and answered, enough to replay the run offline.

A run starts with one header line (``{"schema": 1, "config": …}``) and goes on with one line per decision. Runs append
to the same file. Numbers are written so that they read back exactly; a number that is not finite is written the way
Python's json does (``NaN``, ``Infinity``). A line torn by a crash is closed by the next run and skipped by readers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import pdplugins
from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.planner import PlannerView, ScalePlan, Traffic
from pdplugins.contracts.workers import Pool, WorkerLoad
from pdplugins.errors import ConfigError

if TYPE_CHECKING:
    from pdplugins.runtime.decision import Decision

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One decision, read back."""

    at: str
    """Wall-clock time in UTC, ISO 8601."""
    view: PlannerView | None
    """What was seen; None when the door could not make out what the host said."""
    plan: ScalePlan
    fault: str | None
    step_s: float


@dataclass(slots=True)
class Run:
    """One run of a planner, read back."""

    header: Mapping[str, Any]
    entries: list[Entry] = field(default_factory=list)

    @property
    def initial(self) -> ScalePlan:
        """The plan before the first decision."""
        return ScalePlan(**self.header["initial"])


class DecisionLog:
    """Appends the decisions of one run to a file, line by line. Use as a context manager, or call `close`.

    :param config: what the planner was built from; replaying needs it.
    :param initial: the plan that holds before the first decision.
    :param clock: wall-clock seconds since the epoch.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        deployment: Deployment,
        initial: ScalePlan,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_after_torn_line(path)
        except OSError as error:
            raise ConfigError(f"decision log {path}: {error.strerror}; choose a file that can be written") from None
        self._put(
            {
                "schema": SCHEMA,
                "pdplugins": pdplugins.__version__,
                "at": self._now(),
                "planner": config.planner.name if config.planner else None,
                "config": config.model_dump(mode="json"),
                "deployment": _limits(deployment),
                "initial": asdict(initial),
            }
        )

    def write(self, decision: Decision[ScalePlan], view: PlannerView | None) -> None:
        """Append one decision. Raises OSError when the disk does."""
        self._put(
            {
                "at": self._now(),
                "view": None if view is None else asdict(view),
                "plan": asdict(decision.answer),
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

    def _put(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _now(self) -> str:
        seconds, rest = divmod(self._clock(), 1)
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(rest * 1000):03d}Z"


def read(path: Path) -> list[Run]:
    """Read every run of a decision log. Raises ConfigError, naming the line, when it is not one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a decision log, written with decision_log") from None
    runs: list[Run] = []
    torn: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        data = _object(line)
        if data is None:
            torn = torn or number
        elif "schema" in data:
            if data["schema"] != SCHEMA:
                raise ConfigError(f"{path}:{number}: schema {data['schema']}; this pdplugins reads schema {SCHEMA}")
            runs.append(Run(data))
            torn = None
        elif torn or not runs:
            raise ConfigError(f"{path}:{torn or number}: not a line of a decision log")
        else:
            runs[-1].entries.append(_entry(data, f"{path}:{number}"))
    if not runs:
        raise ConfigError(f"{path}: no run in it; name a decision log, written with decision_log")
    return runs


def view_from(data: Mapping[str, Any]) -> PlannerView:
    """Build a view from what `dataclasses.asdict` made of it."""
    traffic = data["traffic"]
    return PlannerView(
        data["now_s"],
        None if traffic is None else Traffic(**traffic),
        _pool(data["prefill"]),
        _pool(data["decode"]),
    )


def _pool(data: Mapping[str, Any]) -> Pool:
    return Pool(**{**data, "loads": tuple(WorkerLoad(**load) for load in data["loads"])})


def _entry(data: Mapping[str, Any], where: str) -> Entry:
    try:
        view = None if data["view"] is None else view_from(data["view"])
        return Entry(data["at"], view, ScalePlan(**data["plan"]), data["fault"], data["step_s"])
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where}: not a line of a decision log ({error})") from None


def _object(line: str) -> dict[str, Any] | None:
    """Return the object in `line`; None when it is torn."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _limits(deployment: Deployment) -> dict[str, Any]:
    names = ("gpu_budget", "prefill_tp", "decode_tp", "startup_s", "max_batch", "kv_tokens")
    return {"slo": asdict(deployment.slo), **{name: getattr(deployment, name) for name in names}}


def _open_after_torn_line(path: Path) -> TextIO:
    """Open `path` to append whole lines, ending the line that a crash may have left open."""
    with path.open("ab+") as raw:
        if raw.tell():
            raw.seek(-1, 2)
            if raw.read(1) != b"\n":
                raw.write(b"\n")
    return path.open("a", encoding="utf-8", buffering=1)
