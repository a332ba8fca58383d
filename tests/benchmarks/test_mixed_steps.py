"""Measured mixed steps: the profile made of them, and the error of the simulator, are what is committed."""

from __future__ import annotations

import manifest
import mixed_steps_error
import mixed_steps_gpu
import mixed_steps_profile
import pytest

from pdplugins.perf.profile import read_profile

GPU = manifest.read("mixed-steps-gpu")
ERROR = manifest.read("mixed-steps-error")


def test_all_steps_were_measured_in_every_round() -> None:
    assert GPU["kind"] == "measured"
    assert not GPU["failed"]
    kept = {tuple(row[key] for key in mixed_steps_gpu.Step._fields) for row in GPU["rows"]}
    assert kept == {tuple(step) for step in mixed_steps_gpu.steps(GPU["kv_tokens"])}
    assert {row["rounds"] for row in GPU["rows"]} == {9}
    assert all(row["gpu_ms_min"] <= row["gpu_ms"] <= row["gpu_ms_max"] for row in GPU["rows"])


def test_a_mixed_step_computes_what_its_parts_do() -> None:
    assert GPU["check"] < 1e-2


def test_the_shipped_profile_is_made_of_the_measurement() -> None:
    assert mixed_steps_profile.PATH.read_text(encoding="utf-8") == mixed_steps_profile.text()


def test_the_stated_errors_are_those_of_the_committed_rows() -> None:
    found = mixed_steps_error.compared(GPU, read_profile(mixed_steps_profile.PATH))
    assert found["steps"] == ERROR["steps"]
    for part in ("rows", "formulas", "by"):
        assert len(found[part]) == len(ERROR[part])
        for now, then in zip(found[part], ERROR[part], strict=True):
            assert now == pytest.approx(then)
    assert found["best_scale"] == pytest.approx(ERROR["best_scale"])


def test_padding_explains_most_of_the_error() -> None:
    errors = {row["formula"]: row for row in ERROR["formulas"]}
    assert errors["padded"]["median_abs"] < errors["simulator"]["median_abs"] / 2
    assert errors["simulator"]["median_abs_full"] < 0.05
    assert errors["simulator"]["median_abs_full"] == errors["padded"]["median_abs_full"]


def test_a_step_that_no_graph_holds_is_not_padded() -> None:
    formulas = mixed_steps_error.Formulas(read_profile(mixed_steps_profile.PATH), [512, 576])
    step = mixed_steps_error.Step(tokens=512, earlier=0, batch=1, context=256)
    assert formulas.size(step) == 576
    assert formulas.size(step._replace(tokens=4096)) == 4097
    assert formulas.names["padded"](step) > formulas.names["simulator"](step)
