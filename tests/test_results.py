"""The one result schema: every metric by its definition, on numbers small enough to check by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdplugins.provenance import commit
from pdplugins.results import RequestRecord, Result, Speed, Spread, summarise
from pdplugins.types import Slo

SLO = Slo(ttft_s=1.0, tpot_s=0.5)


def test_the_times_of_one_request() -> None:
    record = RequestRecord(arrival_s=10.0, isl_tokens=7, osl_tokens=3, token_times_s=(10.5, 11.0, 12.0))
    assert record.ttft_s == 0.5
    assert record.tpot_s == 0.75
    assert record.tbt_s == (0.5, 1.0)
    assert not record.inside(SLO)
    assert record.inside(Slo(ttft_s=0.5, tpot_s=0.75))


def test_one_token_has_no_tpot() -> None:
    record = RequestRecord(arrival_s=0.0, isl_tokens=1, osl_tokens=1, token_times_s=(0.2,))
    assert (record.tpot_s, record.tbt_s) == (0.0, ())


def test_a_run_is_summed_up_over_all_requests_and_failures_count_as_outside() -> None:
    good = RequestRecord(0.0, 5, 3, (0.5, 1.0, 1.5))
    slow = RequestRecord(0.0, 5, 2, (3.0, 3.1))
    failed = RequestRecord(0.0, 5, 9, error="refused")
    requests, metrics = summarise([good, slow, failed], SLO, duration_s=10.0, gpu_hours=2.0)
    assert (requests.total, requests.failed) == (3, 1)
    assert metrics.slo_attainment == pytest.approx(1 / 3)
    assert metrics.goodput_tokens_per_s == pytest.approx(0.3)
    assert metrics.goodput_requests_per_s == pytest.approx(0.1)
    assert metrics.ttft_s.mean == pytest.approx(1.75)
    assert metrics.tbt_s.p50 == pytest.approx(0.5)
    assert metrics.gpu_hours == 2.0


def test_a_run_without_requests_has_no_attainment() -> None:
    requests, metrics = summarise([], SLO, duration_s=0.0, gpu_hours=0.0)
    assert requests.total == 0
    assert metrics.slo_attainment is None
    assert metrics.ttft_s == Spread()
    assert metrics.goodput_requests_per_s == 0.0


def test_a_result_is_written_whole(tmp_path: Path) -> None:
    requests, metrics = summarise([], SLO, 1.0, 0.0)
    result = Result(
        kind="simulated",
        requests=requests,
        metrics=metrics,
        speed=Speed(wall_s=1.0, duration_s=2.0, requests_per_s=3.0),
        config={},
        seed=0,
        commit=commit(),
        command="x",
    )
    result.write(tmp_path / "r.json")
    assert Result.model_validate(json.loads((tmp_path / "r.json").read_text())) == result
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
