"""What ``experiments.toml`` declares: how each result is made, and which code it measures. `write` writes a result.

Every file under ``results/`` is written by `write`, which adds the fingerprints of the code to the origin of the
figures (`pdplugins.provenance`). ``results.py`` reads them to tell which results are out of date.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fingerprint

from pdplugins.errors import PdpluginsError
from pdplugins.files import write_whole

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
ORIGIN = ("kind", "command", "commit", "versions", "seed")
"""What every result says of itself, beside ``code``."""
ASIDE = {"equality", "experiment", "manifest", "fingerprint", "figures", "planners_report", "results"}
"""Modules that write results and draw them, and compute none."""
SCRIPT = "script"
"""The part that is the script itself with what it imports from this folder."""
Data = dict[str, Any]
Code = dict[str, str]
"""Name of a part of the code to its fingerprint."""


@dataclass(frozen=True)
class Experiment:
    """One command, and the results that it makes."""

    run: str
    """The command line. ``DIR`` is the folder of the traces, ``OUT`` the result file."""
    results: tuple[str, ...]
    parts: tuple[str, ...]
    """Names of ``[parts]``, or paths of this repository."""
    traces: tuple[str, ...] = ()
    """Files that must lie under ``DIR``."""
    minutes: float = 1.0
    """About how long it takes, on two cores."""
    needs: str | None = None
    """What it needs that `make results` cannot start: engines, GPUs."""
    tolerance: float = 0.0
    """By how much of its value a figure may differ and still count as equal."""

    @property
    def name(self) -> str:
        """The result it is called by."""
        return self.results[0]

    @property
    def script(self) -> Path | None:
        """The script of this folder that it runs; None for a command of pdplugins."""
        words = [ROOT / word for word in shlex.split(self.run) if word.startswith("benchmarks/")]
        return next((word for word in words if word.suffix == ".py"), None)

    def code(self) -> Code:
        """Return the fingerprint of each part of the code that it measures, as it is now."""
        found = {name: _of_part(name) for name in self.parts}
        return found if self.script is None else {SCRIPT: fingerprint.of(closure(self.script), ROOT), **found}


@cache
def declared() -> tuple[dict[str, tuple[str, ...]], tuple[Experiment, ...]]:
    """Return the parts of the code, each as patterns of files, and the experiments."""
    data = tomllib.loads((HERE / "experiments.toml").read_text(encoding="utf-8"))
    parts = {name: tuple(patterns) for name, patterns in data["parts"].items()}
    return parts, tuple(_experiments(data))


def _experiments(data: Data) -> Iterator[Experiment]:
    groups: dict[str, list[str]] = data["groups"]
    for entry in data["experiment"]:
        named = [part for name in entry.pop("code") for part in groups.get(name, [name])]
        lists = {key: tuple(entry.pop(key, ())) for key in ("results", "traces")}
        yield Experiment(parts=tuple(dict.fromkeys(named)), **lists, **entry)


def experiments() -> tuple[Experiment, ...]:
    """Return every experiment."""
    return declared()[1]


def experiment_of(result: str) -> Experiment:
    """Return the experiment that makes a result. Raises PdpluginsError where none is declared."""
    for experiment in experiments():
        if result in experiment.results:
            return experiment
    raise PdpluginsError(f"result {result}: no experiment of benchmarks/experiments.toml makes it; add one")


def check_script(path: str) -> None:
    """Raise PdpluginsError where `path` is a script of this folder that no experiment runs: before its work is lost."""
    script = Path(path).resolve()
    ours = script.is_relative_to(HERE) and script.stem not in ASIDE
    if ours and script not in {experiment.script for experiment in experiments()}:
        raise PdpluginsError(f"{path}: no experiment of benchmarks/experiments.toml runs it; add one")


def no_figure() -> list[Path]:
    """Return the modules that no figure depends on, as ``experiments.toml`` says."""
    data = tomllib.loads((HERE / "experiments.toml").read_text(encoding="utf-8"))
    return _matching(data["no_figure"]["files"])


def place(name: str, traces: Path | None) -> Path | None:
    """Return where a trace lies; None when it is not there."""
    return next(iter(sorted(traces.rglob(name))), None) if traces else None


def files_of(part: str) -> list[Path]:
    """Return the files of a part, or of a path of this repository. Raises PdpluginsError for a pattern without any."""
    return _matching(declared()[0].get(part, (part,)))


def _matching(patterns: Sequence[str]) -> list[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        files = {path for path in ROOT.glob(pattern.removeprefix("!")) if path.is_file()}
        if not files:
            raise PdpluginsError(f"benchmarks/experiments.toml: no file is called {pattern}")
        found = found - files if pattern.startswith("!") else found | files
    return sorted(found)


def _of_part(name: str) -> str:
    return fingerprint.of(files_of(name), ROOT)


def closure(script: Path) -> set[Path]:
    """Return `script` and what it imports from this folder, less what only writes results."""
    found, open_ = set[Path](), [script]
    while open_:
        path = open_.pop()
        if path not in found:
            found.add(path)
            open_ += _imported(path, path.stat().st_mtime_ns)
    return {path for path in found if path.stem not in ASIDE}


@cache
def _imported(path: Path, _: int) -> tuple[Path, ...]:
    """Return what a script imports from this folder. The time of its last change stands for what is in it."""
    found: list[Path] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            place = Path(*name.removeprefix("benchmarks.").split(".")).with_suffix(".py")
            found += [folder / place for folder in {path.parent, HERE} if (folder / place).is_file()]
    return tuple(found)


# --- result files ---------------------------------------------------------------------------------------------------


def read(result: str) -> Data:
    """Return what a result file holds."""
    data: Data = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))
    return data


def write(result: str, data: Mapping[str, Any]) -> None:
    """Write ``results/<result>.json``: `data`, which holds its origin (`provenance.record`), and the code it measures.

    Raises PdpluginsError where the origin is incomplete or no experiment is declared for the result.
    """
    missing = [key for key in ORIGIN if key not in data]
    if missing:
        raise PdpluginsError(
            f"result {result}: lacks {', '.join(missing)}; add what pdplugins.provenance.record returns"
        )
    code = experiment_of(result).code()
    origin = {key: data[key] for key in ORIGIN}
    rest = {key: value for key, value in data.items() if key not in {*ORIGIN, "code", "shown_equal"}}
    dump(result, {**origin, "code": code, **rest})


def dump(result: str, data: Mapping[str, Any]) -> None:
    """Write a result file as it is, completely or not at all."""
    RESULTS.mkdir(exist_ok=True)
    write_whole(RESULTS / f"{result}.json", json.dumps(data, indent=1) + "\n")


MACHINE = re.compile(r"(?<![\w.:/-])(?:/(?!dev/)[\w.-]+|~)(?:/|\b)")
"""A path of the machine that ran a command."""


def flaws(data: Data) -> list[str]:
    """Return what a result fails to say of its origin, or says in a way that nobody else can use."""
    found = [f"no {key}" for key in (*ORIGIN, "code") if key not in data]
    if data.get("kind") not in ("measured", "simulated"):
        found.append("kind is neither measured nor simulated")
    for commit in _every("commit", data):
        if not re.fullmatch(r"[0-9a-f]{12}", str(commit)):
            found.append(f"commit {commit} is not that of clean code")
    found += [f"command names a path of one machine: {it}" for it in _every("command", data) if MACHINE.search(str(it))]
    return list(dict.fromkeys(found))


def _every(key: str, data: object) -> Iterator[object]:
    """Yield each value of `key`, at any depth."""
    if isinstance(data, dict) and key in data:
        yield data[key]
    inside = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for one in inside:
        yield from _every(key, one)


def changed(experiment: Experiment, data: Data) -> list[str]:
    """Return the parts of the code that have changed since the result was made, or since it was last shown equal."""
    now = experiment.code()
    known = [entry for entry in (data.get("code"), data.get("shown_equal", {}).get("code")) if entry]
    since = [[part for part in now if entry.get(part) != now[part]] for entry in known] or [list(now)]
    return min(since, key=len)


DOPD = ("dopd", "configs/dopd.yaml")
"""What only DOPD's own runs depend on, as long as no more than the planner section of its config has changed."""


def equality(data: Data) -> str:
    """Say of which commit a result was shown equal, and how closely. It must have been."""
    shown = data["shown_equal"]
    within = f" within {100 * shown['tolerance']:g} %" if shown.get("tolerance") else ""
    return f"shown equal{within} at commit {shown['commit']}"


def check_only(result: str, *parts: str) -> None:
    """Raise PdpluginsError where code other than `parts` and the script has changed since a result was made.

    Then what others of it show may be taken over while what runs `parts` is made again.
    """
    others = [part for part in changed(experiment_of(result), read(result)) if part not in (SCRIPT, *parts)]
    if others:
        raise PdpluginsError(f"result {result}: {', '.join(others)} changed since it was made; make all of it again")
