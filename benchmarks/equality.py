"""Shows a result equal after a change of the code that should not matter, by computing a part of it again.

What is computed again is, of these, the first that there is:

* the cell that the script declares: ``cell()``, or ``cell(traces)`` where it needs the folder of the traces. It returns
  rows of its tables, computed in seconds: ``{"dopd-figure6": [{"pools": "2P1D", "goodput": 812.4}]}``. The texts of a
  row tell which published row it is;
* the samples that `experiment.publish` keeps: the smallest run of each combination of policies (`measure.Samples`);
* runs that name their own command: the first of each group.

Numbers must agree within the declared tolerance of the experiment. Only a cell shows that a changed script computes the
same: samples and runs do not run the script.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import manifest
from manifest import HERE, RESULTS, ROOT, Data, Experiment

from pdplugins.errors import PdpluginsError
from pdplugins.provenance import commit


def differences(experiment: Experiment, traces: Path | None) -> list[str] | None:
    """Compute a part again and note it as equal, or return how it differs. None: there is nothing to compare."""
    known = all((RESULTS / f"{name}.json").exists() for name in experiment.results)
    if not known or any(manifest.flaws(manifest.read(name)) for name in experiment.results):
        return None
    pairs = computed(experiment, traces)
    if not pairs:
        return None
    found = [text for pair in pairs for text in pair.differences(experiment.tolerance)]
    if not found:
        entry = {
            "commit": commit(),
            "computed again": [pair.name for pair in pairs],
            "tolerance": experiment.tolerance,
            "code": experiment.code(),
        }
        for result in experiment.results:
            manifest.dump(result, {**manifest.read(result), "shown_equal": entry})
    return found


@dataclass(frozen=True)
class Pair:
    """A row as it was published, and as it comes out now."""

    name: str
    published: Mapping[str, Any] | None
    now: Mapping[str, Any]

    def differences(self, tolerance: float) -> Iterator[str]:
        """Yield where the two differ by more than `tolerance`, a share."""
        if self.published is None:
            yield f"{self.name}: no such row is published"
        else:
            yield from (f"{self.name}: {text}" for text in _unequal(self.published, self.now, tolerance))


def computed(experiment: Experiment, traces: Path | None) -> list[Pair]:
    """Compute a part of each result again, in the first way that there is."""
    data = {name: manifest.read(name) for name in experiment.results}
    cells = _cells(experiment, traces)
    if cells is not None:
        return [
            Pair(f"{name} {label(row)}", _row(data[name], row), row) for name, rows in cells.items() for row in rows
        ]
    if any(manifest.SCRIPT in manifest.changed(experiment, one) for one in data.values()):
        return []
    pairs = []
    for name, one in data.items():
        pairs += [_again(name, number, sample) for number, sample in enumerate(one.get("samples", []))]
        pairs += [_replayed(name, run, traces) for run in _firsts(one.get("runs", []))]
    return pairs


def _again(name: str, number: int, sample: Data) -> Pair:
    from measure import again  # noqa: PLC0415 - the simulator is needed only here

    return Pair(f"{name}, sample {number}", sample["metrics"], again(sample)["metrics"])


def _firsts(runs: Sequence[Data]) -> list[Data]:
    """Return the first run of each group that names the command it was made by."""
    return list({run["group"]: run for run in reversed(runs) if "group" in run and "command" in run}.values())


def _replayed(name: str, run: Data, traces: Path | None) -> Pair:
    words = [str(manifest.place(word, traces) or word) for word in shlex.split(run["command"])]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        _started([str(Path(sys.executable).with_name(words[0])), *words[1:], "--json", str(out)], [ROOT])
        return Pair(f"{name} {run['label']}", run["metrics"], json.loads(out.read_text(encoding="utf-8"))["metrics"])


def _cells(experiment: Experiment, traces: Path | None) -> dict[str, list[Data]] | None:
    """Call ``cell()`` of the script in a process of its own; None where it has none. Raises PdpluginsError."""
    script = experiment.script
    if script is None or "\ndef cell(" not in script.read_text(encoding="utf-8"):
        return None
    program = f"import json, sys, {script.stem} as it; print(json.dumps(it.cell(*sys.argv[1:])))"
    words = [sys.executable, "-c", program, *([str(traces)] if experiment.traces else [])]
    found: dict[str, list[Data]] = json.loads(_started(words, [script.parent, HERE, ROOT]).splitlines()[-1])
    return found


def _started(words: Sequence[str], paths: Sequence[Path]) -> str:
    """Run a program with `paths` before all others; return what it prints. Raises PdpluginsError where it fails."""
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PdpluginsError(f"{shlex.join(words)} failed: {(done.stderr.strip().splitlines() or ['silently'])[-1]}")
    return done.stdout


def label(row: Mapping[str, Any]) -> str:
    """Return what tells a row from the others: its texts."""
    return ", ".join(value for value in row.values() if isinstance(value, str))


def _row(data: Data, row: Mapping[str, Any]) -> Data | None:
    """Return the published row with the same texts."""
    names = [key for key, value in row.items() if isinstance(value, str)]
    published: Sequence[Data] = data.get("rows") or data.get("runs") or [data]
    return next((one for one in published if all(one.get(key) == row[key] for key in names)), None)


def _unequal(published: Mapping[str, Any], row: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    for key, value in row.items():
        old = published.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from _unequal(old, value, tolerance)
        elif isinstance(value, float | int) and isinstance(old, float | int):
            if abs(value - old) > max(tolerance * abs(old), 1e-9):
                yield f"{key} was {old}, is {value}"
        elif value != old:
            yield f"{key} was {old}, is {value}"
