"""SLO-sized steps measured on a GPU: what is committed is whole, and its summary is that of its rows."""

from __future__ import annotations

import manifest
import pytest
import slo_steps_gpu
from mixed_steps_gpu import Step

GPU = manifest.read("slo-steps-gpu")


def test_every_series_was_measured() -> None:
    assert GPU["kind"] == "measured"
    assert {tuple(row[name] for name in slo_steps_gpu.Run._fields) for row in GPU["rows"]} == {*slo_steps_gpu.runs()}
    assert all(took_ms > 0 for row in GPU["rows"] for _, _, took_ms in row["steps"])


def test_the_summary_is_that_of_the_rows() -> None:
    found = slo_steps_gpu.summary(GPU["rows"])
    assert len(found) == len(GPU["summary"]) == len(slo_steps_gpu.TPOTS_MS) * len(slo_steps_gpu.SIZERS)
    for now, then in zip(found, GPU["summary"], strict=True):
        assert now == pytest.approx(then)


@pytest.mark.parametrize("name", sorted(slo_steps_gpu.SIZERS))
def test_a_scheduler_hears_how_long_its_steps_took(name: str) -> None:
    """Steps that take a fifth longer than the one before them said must become smaller."""
    run = slo_steps_gpu.Run(name, 40.0, 32, 1024)

    def slow(step: Step) -> float:
        return 1.2 * (10.0 + step.tokens * 0.03)

    steps = [*slo_steps_gpu.series(run, slow)]
    assert len(steps) == slo_steps_gpu.SIZED
    assert steps[-1][0] < steps[0][0]
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_a_fixed_chunk_stays_as_it_is() -> None:
    run = slo_steps_gpu.Run("chunk 512", None, 8, 1024)
    assert {tokens for tokens, _, _ in slo_steps_gpu.series(run, lambda _: 20.0)} == {512}
