"""The closed loop in real time, small: mock engines on stand-in GPUs, a real gateway, the real daemon."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the published comparison."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER / "rapid"))
    monkeypatch.setattr(sys, "argv", [str(FOLDER / "rapid/live.py")])
    spec = importlib.util.spec_from_file_location("live", FOLDER / "rapid/live.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_watts_and_roles_follow_the_load_and_the_budget_holds(
    live: ModuleType, nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    monkeypatch.setattr(live, "PHASE_S", 6.0)
    requests = live.trace(0)
    data = live.config(live.rapid.Split(4, 600.0, 600.0), "both", live.profile(tmp_path))
    seen = live.measured(data, "both", requests, nvml_library)
    assert seen["failed"] == 0
    assert seen["highest_sum_w"] <= live.rapid.BUDGET_W
    assert [took for took in seen["raised_s"] if took is not None]
    assert [took for took in seen["flips_s"] if took is not None]


def test_how_long_moves_took_is_read_from_the_trace_of_writes(live: ModuleType) -> None:
    node = live.nodes.Node()
    node.gpus = 2
    for number, (at_s, gpu, watts, result) in enumerate(
        [(10.2, 0, 550, 0), (10.3, 1, 650, live.nodes.BEGUN), (10.6, 1, 650, 0)]
    ):
        write = node.trace[number]
        write.at_s, write.gpu, write.mw, write.result = at_s, gpu, watts * 1000, result
    node.writes = 3

    def decision(second: int, first_w: float, second_w: float, *flips: dict[str, object]) -> dict[str, object]:
        answer = {"caps_w": {"0": first_w, "1": second_w}, "flips": list(flips), "reason": ""}
        return {"kind": "power", "at": f"1970-01-01T00:00:{second:02d}.000Z", "answer": answer}

    decisions = [
        {"schema": 2},
        decision(9, 600, 600),
        decision(10, 550, 650, {"gpu": 0, "role": "decode"}),
        decision(20, 500, 650),
    ]
    roles = [(9.0, {"a": "prefill", "b": "decode"}), (10.5, {"a": "decode", "b": "decode"})]
    found = live.moves(decisions, node, roles, 0.0)
    assert found["lowered_s"] == [pytest.approx(0.2), None]
    assert found["raised_s"] == [pytest.approx(0.6)]
    assert found["flips_s"] == [pytest.approx(0.5)]
