"""The report: a few hundred points however long the run, nothing from outside, nothing that breaks out of its data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pdplugins.config import parse
from pdplugins.results import Scaling
from pdplugins.sim.core.sampler import MOST_SAMPLES, Sample, Sampler
from pdplugins.sim.report.page import page
from pdplugins.sim.report.ranking import Run, best_of, unlike
from pdplugins.sim.report.series import BINS, series_of, thinned
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest


def run(name: str = "a run", requests: int = 3000, gap_s: float = 0.05, router: str = "round-robin") -> Run:
    trace = [TraceRequest(index * gap_s, 100 + index % 700, 1 + index % 50) for index in range(requests)]
    config = parse({"router": router, "deployment": {"prefill": {"replicas": 2}}})
    sampler = Sampler()
    result, outcome = simulate(config, trace, trace_name="made up", command="none", sampler=sampler)
    return Run(name, result, series_of(outcome, result, sampler.samples))


@pytest.fixture(scope="module")
def one() -> Run:
    return run()


def data(text: str) -> dict[str, object]:
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert match is not None
    found: dict[str, object] = json.loads(match[1])
    return found


def test_it_opens_offline(one: Run) -> None:
    text = page([one])
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|fetch\(|https?://(?!www\.w3\.org)""", text)
    assert "{{" not in text
    assert "simulated" in text


def test_lines_have_a_few_hundred_points(one: Run) -> None:
    charts = data(page([one]))["charts"]
    assert isinstance(charts, list)
    titles = {chart["title"] for chart in charts}
    assert {"Arrivals", "Workers that serve", "Inside both SLOs", "Time to first token", "TTFT of requests"} <= titles
    assert all(len(line["x"]) == len(line["y"]) <= 3 * BINS for chart in charts for line in chart["lines"])


def test_the_numbers_are_those_of_the_run(one: Run) -> None:
    series = one.series
    assert series is not None
    end_s = 2999 * 0.05
    assert sum(rate for rate in series.rate if rate) * end_s / BINS == pytest.approx(3000, rel=1e-3)
    middle = min(range(len(series.cdf_share)), key=lambda index: abs((series.cdf_share[index] or 0) - 0.5))
    assert series.cdf_ttft_s[middle] == pytest.approx(one.result.metrics.ttft_s.p50, rel=1e-3)
    assert series.cdf_ttft_s[-1] >= max(value for value in series.ttft_p99_s if value is not None) * 0.99  # type: ignore[operator]


def test_a_reason_cannot_break_out_of_the_page(one: Run) -> None:
    evil = "</script><script>alert(1)</script>"
    result = one.result.model_copy(
        update={"scaling": [Scaling(at_s=1, prefill=1, decode=1, reason=evil)], "command": evil}
    )
    text = page([Run("a <b> run", result, one.series)])
    assert "<script>alert" not in text
    assert data(text)["decisions"] == [[1.0, "a <b> run", 1, 1, evil]]


def test_a_run_in_which_nothing_was_answered_has_a_page() -> None:
    trace = [TraceRequest(0.0, 9_000_000, 5)]
    sampler = Sampler()
    result, outcome = simulate(parse({}), trace, trace_name="x", command="none", sampler=sampler)
    assert result.requests.failed == 1
    assert "No policy changed the pools" in page([Run("x", result, series_of(outcome, result, sampler.samples))])


def test_samples_stay_few_and_keep_every_change() -> None:
    samples = [Sample(float(i), (1 + (i >= 333), 1), (1 + (i >= 333), 1), (0, 0), (0, 0)) for i in range(5000)]
    kept = thinned(samples, most=100)
    assert len(kept) < 110
    assert {332.0, 333.0, 4999.0} <= {sample.at_s for sample in kept}


@pytest.mark.moderate
def test_a_long_run_is_sampled_less_often() -> None:
    long = run(requests=400, gap_s=30.0)
    assert long.series is not None
    assert len(long.series.samples) <= MOST_SAMPLES + 1


def test_equal_runs_have_no_best(one: Run) -> None:
    best = best_of({"a": one.result, "b": one.result})
    assert set(map(tuple, best.values())) == {()}


def test_no_run_is_best_when_one_was_cut_short(one: Run) -> None:
    """They end at different moments, so their numbers are of different traffic."""
    cheaper = one.result.metrics.model_copy(update={"gpu_hours": 0.0})
    short = one.result.model_copy(update={"metrics": cheaper, "interrupted": True})
    assert set(map(tuple, best_of({"a": one.result, "b": short}).values())) == {()}
    assert "interrupted" in unlike([one, Run("b", short, one.series)])[0]


def test_a_comparison_of_unlike_runs_says_so(one: Run) -> None:
    config = {**one.result.config, "deployment": {**one.result.config["deployment"], "gpu_budget": 2}}
    other = Run("other", one.result.model_copy(update={"config": config}), one.series)
    assert unlike([one, one]) == []
    assert unlike([one, other]) == ["not like with like: GPUs a run 8, other 2"]
    assert "not like with like" in page([one, other])


def test_the_template_is_packaged() -> None:
    assert (Path(__file__).parents[3] / "pdplugins/sim/report/template.html").is_file()
