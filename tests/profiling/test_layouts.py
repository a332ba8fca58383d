"""Layouts by name, and the knots that a profile keeps."""

from __future__ import annotations

import stat
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.profiling import layouts_reader
from pdplugins.profiling.layouts import Degrees, read_modes
from pdplugins.profiling.profiles import profile
from pdplugins.profiling.thin import error, thinned

pytestmark = pytest.mark.moderate

FAKE = """#!{python}
import json, sys
asked = json.load(sys.stdin)
assert asked["rails"] in (1, 8) and asked["shared_beside"] == (asked["rails"] == 8)
tokens, batches, contexts = asked["tokens"], asked["batches"], asked["contexts"]
found = [
    {{
        "weights_bytes": 7e11, "kv_bytes_per_token": 35136, "window_tokens": None, "window_bytes_per_token": 0,
        "kv_copies": layout["tensor"], "layers": 50, "note": "tried" if layout["expert"] > 1 else None,
        "modes": {{"gemm": "fp8_block", "kvcache": asked["modes"].get("kvcache", "fp8")}},
        "dense": [10 + 0.02 * t for t in tokens],
        "attention": [1 + (t / 1000) ** 2 for t in tokens],
        "experts": [5 + 0.01 * t for t in tokens],
        "decode_dense": [8 + 0.01 * b for b in batches],
        "decode_attention": [[b * c / 1e5 + 70 * (b == 2 and c == 8192) for c in contexts] for b in batches],
        "decode_experts": [4 + 0.005 * b for b in batches],
    }}
    for layout in asked["layouts"]
]
json.dump({{"tool": "aiconfigurator 0.0", "version": "1", "layouts": found}}, sys.stdout)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Return an interpreter that answers like aiconfigurator's."""
    path = tmp_path / "python"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run(*arguments: str | Path) -> None:
    result = CliRunner().invoke(profile, ["from-kernels", "--gpu", "h200", "--model", "m", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception


def test_layouts_become_one_file(tmp_path: Path, fake: Path) -> None:
    out = tmp_path / "mine.json"
    layouts = ("--layout", "tp8", "--layout", "dp16+ep16")
    more = (
        "--shared-beside",
        "--rails",
        "8",
        "--precision",
        "kvcache=float16",
        "--imbalance",
        "1.5",
        "--draft-tokens",
        "1",
        "--acceptance",
        "0.5",
    )
    run(*layouts, *more, "--out", out, "--python", fake)
    made = read_profile(out)
    perf = TableModel(made)
    assert perf.prefill_s(4096, 8) == pytest.approx((10 + 81.92 + 1 + 4.096**2 + 0.5 * 45.96) / 1e3, rel=0.01)
    step_ms = 8 + 1.28 + 128 * 4096 / 1e5 + 0.5 * (4 + 0.64)
    assert perf.decode_step_s(64, 4096, 8) == pytest.approx(step_ms * 1.02 / 1.5 / 1e3, rel=0.01)
    assert perf.decode_step_s(1, 8192, 8) < perf.decode_step_s(1.5, 8192, 8) < 0.012, "a spike in the tables is cut"
    assert made.layouts[16].expert == made.layouts[16].attention_data == 16
    assert (made.layouts[8].note, made.layouts[16].note) == (None, "tried")
    assert made.precision["kvcache"] == "float16"
    assert len(made.prefill[8].tokens) < 15, "a table keeps the knots that it needs"
    assert "--python" not in made.provenance.command


def worker(*, beside: bool, rails: int, query_name: str = "query") -> dict[str, Any]:
    """Ask the worker about an aiconfigurator that knows three kernels and an all-reduce."""
    overlapped = {"generation_moe_overlap": 4.0} if query_name != "query" else {}
    kernels = overlapped | {"generation_moe": 5.0, "generation_shared_ffn1_gemm": 2.0, "generation_attention": 1.0}
    database = SimpleNamespace(system_spec={"node": {"inter_node_bw": 50e9}})

    def query(name: str, database: Any, **_: Any) -> float:
        return kernels.get(name) or 9.0 * 50e9 / database.system_spec["node"]["inter_node_bw"]

    operations = [
        SimpleNamespace(_name=name, get_weights=float, **{query_name: partial(query, name)})
        for name in (*kernels, "all_reduce")
    ]
    model = MagicMock(generation_ops=operations, context_ops=operations, model_family="DEEPSEEK", _num_layers=1)
    model.config.kvcache_quant_mode.value.memory, model.config.tp_size = 1, 8
    sdk = MagicMock()
    sdk.get_model.return_value = model
    layout = {"tensor": 8, "attention_data": 1, "pipeline": 1, "expert": 1, "expert_tensor": 8}
    asked = {"backend": "b", "model": "m", "modes": {}, "experts": "power_law"}
    asked |= {
        "layouts": [layout],
        "tokens": [1],
        "batches": [1],
        "contexts": [1],
        "shared_beside": beside,
        "rails": rails,
    }
    (found,) = layouts_reader.read(asked, database, lambda _: sdk)["layouts"]
    return cast("dict[str, Any]", found)


def test_shared_experts_hide_beside_the_others_in_decode_steps_alone() -> None:
    serial, beside = (worker(beside=beside, rails=1) for beside in (False, True))
    assert (serial["decode_dense"], beside["decode_dense"]) == ([16.0], [14.0])
    assert serial["dense"] == beside["dense"] == [16.0]


def test_the_newer_aiconfigurator_is_asked_by_its_own_name() -> None:
    found = worker(beside=False, rails=1, query_name="_engine_query")
    assert (found["decode_dense"], found["decode_experts"]) == ([20.0], [9.0])


def test_decode_steps_come_from_another_profile(tmp_path: Path, fake: Path) -> None:
    newer = tmp_path / "newer"
    newer.write_text(
        fake.read_text().replace("8 + 0.01 * b", "20 + 0.01 * b").replace("4 + 0.005 * b", "9 + 0.005 * b")
    )
    newer.chmod(fake.stat().st_mode)
    decode, mixed, plain = (tmp_path / f"{name}.json" for name in ("decode", "mixed", "plain"))
    run("--layout", "tp8", "--out", decode, "--python", newer)
    run("--layout", "tp8", "--out", plain, "--python", fake)
    run("--layout", "tp8", "--out", mixed, "--python", fake, "--decode-of", decode)
    taken, own, other = (read_profile(path) for path in (mixed, plain, decode))
    assert (taken.decode, taken.experts[8].decode) == (other.decode, other.experts[8].decode)
    assert (taken.prefill, taken.dense, taken.experts[8].prefill) == (own.prefill, own.dense, own.experts[8].prefill)
    assert taken.provenance.source == f"{own.provenance.source}; decode steps: {other.provenance.source}"


def test_decode_steps_of_other_layouts_are_refused(tmp_path: Path, fake: Path) -> None:
    four, eight = tmp_path / "four.json", tmp_path / "eight.json"
    run("--layout", "tp4", "--out", four, "--python", fake)
    with pytest.raises(ConfigError, match=r"--decode-of .*has layouts of 4 GPUs"):
        run("--layout", "tp8", "--out", eight, "--python", fake, "--decode-of", four)


def test_a_ring_over_servers_uses_all_of_their_adapters() -> None:
    assert worker(beside=False, rails=9)["decode_dense"] == [5.0 + 2.0 + 1.0]


def test_two_layouts_of_as_many_gpus_need_two_files(tmp_path: Path, fake: Path) -> None:
    layouts = ("--layout", "tp8", "--layout", "dp8+ep8")
    with pytest.raises(ConfigError, match="one layout for each number of GPUs"):
        run(*layouts, "--out", tmp_path / "mine.json", "--python", fake)


def test_aiconfigurator_missing_says_what_to_install(tmp_path: Path) -> None:
    for python in (sys.executable, tmp_path / "none"):
        with pytest.raises(ConfigError, match="pip install aiconfigurator"):
            run("--layout", "tp8", "--out", tmp_path / "mine.json", "--python", str(python))


@pytest.mark.parametrize(
    ("text", "degrees", "gpus"),
    [
        ("tp8", Degrees(tensor=8, expert_tensor=8), 8),
        ("tp8+ep8", Degrees(tensor=8, expert=8), 8),
        ("dp8+ep8", Degrees(attention_data=8, expert=8), 8),
        ("tp4+ep2", Degrees(tensor=4, expert=2, expert_tensor=2), 4),
        ("tp8+pp2", Degrees(tensor=8, pipeline=2, expert_tensor=8), 16),
    ],
)
def test_a_layout_is_read_by_its_degrees(text: str, degrees: Degrees, gpus: int) -> None:
    assert Degrees.read(text) == degrees
    assert degrees.gpus == gpus


@pytest.mark.parametrize("text", ["", "tp", "tp0", "xp8", "tp8+tp4", "tp8+ep16", "tp8,ep8", "tp8+ep3"])
def test_other_layouts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--layout") as caught:
        Degrees.read(text)
    assert "\n" not in str(caught.value)


def test_precisions_are_read_by_name() -> None:
    assert read_modes(["kvcache=float16", "moe=nvfp4"]) == {"kvcache": "float16", "moe": "nvfp4"}
    with pytest.raises(ConfigError, match="--precision"):
        read_modes(["cache=float16"])
    with pytest.raises(ConfigError, match="--precision"):
        read_modes(["moe"])


def test_a_line_keeps_its_ends_and_a_bend_keeps_its_knot() -> None:
    axis = [1, 2, 4, 8, 16]
    assert thinned(axis, [[1, 2, 4, 8, 16]], 0.01) == [0, 4]
    assert thinned(axis, [[4, 4, 4, 8, 16], [1, 2, 4, 8, 16]], 0.01) == [0, 2, 4]


def test_no_left_out_value_is_further_off_than_allowed() -> None:
    axis = list(range(1, 200))
    rows = [[5 + x**0.7 for x in axis], [1 + x**1.5 for x in axis]]
    kept = thinned(axis, rows, 0.01)
    assert len(kept) < 30
    assert error(np.array(axis, float), np.array(rows), kept).max() <= 0.01
    assert error(np.array(axis, float), np.array(rows), [0, len(axis) - 1]).max() > 0.01
