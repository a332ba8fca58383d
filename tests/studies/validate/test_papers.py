"""Cells of papers' tables."""

from __future__ import annotations

import pytest

from pdplugins.sim.core.flight import Arrival
from pdplugins.studies.validate import papers
from pdplugins.studies.validate.papers import Cell


def test_a_cell_explains_itself_only_where_it_misses_the_bar() -> None:
    inside, outside = (Cell("t", "c", "m", 10.0, found, "because").data() for found in (11.9, 12.1))
    assert (inside["error"], inside["note"]) == (0.19, "")
    assert (outside["error"], outside["note"]) == (0.21, "because")


def test_each_request_of_a_batch_adds_its_time_outside_the_gpu() -> None:
    perf = papers._a100()
    raw = papers.read_profile(papers.data_dir("profiles") / "a100" / "qwen2.5-14b.json")
    table = raw.decode[1]
    row, batch = table.raw_ms[-1], table.batch[-1]
    want = papers.SILICON.decode * (row[5] + papers.SEQUENCE_MS * batch) + papers.SILICON.step_ms
    assert 1e3 * perf.decode_step_s(batch, table.context_tokens[5], 1) == pytest.approx(want)


def test_the_capacity_of_a_prefill_bound_pair_is_one_prompt_after_the_other() -> None:
    perf = papers._a100()
    steps = papers._run(perf, 8192, 4, "disaggregated", 0.01, 1, seed=0).records[0]
    capacity = papers._capacity(perf, 8192, 4, "disaggregated", seed=0)
    prompt_s = (steps.ttft_s or 0.0) - perf.transfer_s(8192) - perf.decode_step_s(1, 8192, 1)
    assert capacity == pytest.approx(1 / prompt_s, rel=0.08)


def test_a_lone_prompt_takes_what_the_profile_says() -> None:
    perf = papers.TableModel(papers.read_profile(papers.data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))
    (record,) = papers._dopd_run(perf, [Arrival(0.0, 700, 1)], 1, colocated=True).records
    assert record.ttft_s == pytest.approx(perf.prefill_s(700, 1), abs=1e-9)


@pytest.mark.moderate
def test_every_cell_that_misses_the_bar_has_a_note() -> None:
    for cell in papers.dopd():
        assert abs(cell.error) <= papers.BAR or cell.data()["note"]
