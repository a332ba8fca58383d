"""The published runs of the overlap of KV transfers with compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RUNS = json.loads((ROOT / "benchmarks" / "results" / "kv-overlap.json").read_text(encoding="utf-8"))["runs"]
SHORT = 16
"""Tokens of the one further push of each round, see the benchmark."""


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["sglang"])
def test_every_byte_of_every_push_was_moved(run: dict[str, Any]) -> None:
    tokens = run["tokens"] * len(run["rows"]) + SHORT
    assert run["bytes_moved"] == run["rounds"] * tokens * run["model"]["kv_bytes_per_token"]
    assert run["rounds"] >= 3
