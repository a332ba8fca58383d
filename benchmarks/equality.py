"""Shows a result equal after a change of the code that should not matter, by computing a part of it again.

A script may declare a cell: ``cell()``, or ``cell(traces)`` where it needs the folder of the traces. It returns rows of
its tables, computed again in seconds: ``{"dopd-figure6": [{"pools": "2P1D", "goodput": 812.4}]}``. The texts of a row
tell which published row it is; its numbers must agree within the declared tolerance of the experiment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import manifest
from manifest import HERE, RESULTS, ROOT, Data, Experiment

from pdplugins.errors import PdpluginsError
from pdplugins.provenance import commit


def differences(experiment: Experiment, traces: Path | None) -> list[str] | None:
    """Compute the cell again and note it as equal, or return how it differs. None: there is nothing to compare."""
    known = all((RESULTS / f"{name}.json").exists() for name in experiment.results)
    if not known or any(manifest.flaws(manifest.read(name)) for name in experiment.results):
        return None
    cells = computed(experiment, traces)
    if cells is None:
        return None
    found = [text for name, rows in cells.items() for text in compare(manifest.read(name), rows, experiment.tolerance)]
    if not found:
        entry = {
            "commit": commit(),
            "cells": {name: [label(row) for row in rows] for name, rows in cells.items()},
            "tolerance": experiment.tolerance,
            "code": experiment.code(),
        }
        for result in experiment.results:
            manifest.dump(result, {**manifest.read(result), "shown_equal": entry})
    return found


def computed(experiment: Experiment, traces: Path | None) -> dict[str, list[Data]] | None:
    """Call ``cell()`` of the script in a process of its own; None where it has none. Raises PdpluginsError."""
    script = experiment.script
    if script is None or "\ndef cell(" not in script.read_text(encoding="utf-8"):
        return None
    program = f"import json, sys, {script.stem} as it; print(json.dumps(it.cell(*sys.argv[1:])))"
    paths = os.pathsep.join([str(script.parent), str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-c", program, *([str(traces)] if experiment.traces else [])]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PdpluginsError(f"cell() of {script.relative_to(ROOT)} failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, list[Data]] = json.loads(done.stdout.splitlines()[-1])
    return found


def label(row: Mapping[str, Any]) -> str:
    """Return what tells a row from the others: its texts."""
    return ", ".join(value for value in row.values() if isinstance(value, str))


def compare(data: Data, rows: Sequence[Mapping[str, Any]], tolerance: float) -> list[str]:
    """Return where `rows`, computed again, differ from the rows of a result by more than `tolerance`, a share."""
    published = data.get("rows") or data.get("runs") or [data]
    found = []
    for row in rows:
        names = [key for key, value in row.items() if isinstance(value, str)]
        same = next((one for one in published if all(one.get(key) == row[key] for key in names)), None)
        if same is None:
            found.append(f"no row {label(row)} is published")
        else:
            found += [f"{label(row)}: {text}" for text in _unequal(same, row, tolerance)]
    return found


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
