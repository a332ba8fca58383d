"""Traces that the tests of several readers share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workloads.files import write


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    """Two clients: a regular one with known lengths, and a busier bursty one."""
    for name, rate, family, shape in (("1", 2, "Gamma", 16.0), ("2", 8, "Weibull", 0.5)):
        rows = [f"{start},{rate if start else 0},1,{family if start else ''},{shape},0.1" for start in (0, 600, 1200)]
        write(tmp_path, "\n".join(rows) + "\n", f"chunk-{name}-trace.csv")
        histogram = f"{{{name}0: 0.25, {name}00: 0.75}}"
        windows = {"0": {"input_tokens": "{}", "output_tokens": "{}"}}
        windows["21600"] = {"input_tokens": histogram, "output_tokens": "{5: 1.0}"}
        write(tmp_path, json.dumps(windows), f"chunk-{name}-dataset.json")
    return tmp_path
