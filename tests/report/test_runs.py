"""The report of runs: small however long they were, nothing from outside, nothing that breaks out of its place."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from pdplugins.config import parse
from pdplugins.contracts.request import Slo
from pdplugins.report.ranking import Run, best_of, unlike
from pdplugins.report.runs import MOST_DECISIONS, page
from pdplugins.report.series import BINS, QUEUE, WANTED, series_of_records
from pdplugins.results import RequestRecord, Scaling
from pdplugins.sim.core.sampler import MOST_SAMPLES, Sample, Sampler
from pdplugins.sim.report.series import series_of, thinned
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest
from tests.report.made import run

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def one() -> Run:
    return run()


def test_it_opens_offline_without_a_script(one: Run) -> None:
    text = page([one])
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://|<script""", text)
    assert "default-src 'none'" in unescape(text)
    assert "simulated" in text


def test_attainment_comes_before_everything_else(one: Run) -> None:
    text = page([one], ["Looking back, 3 GPUs would have done."])
    order = [
        "<h1>a run: ",
        "Looking back, 3 GPUs",
        "SLO attainment %",
        "Latencies",
        "Inside both SLOs",
        "Requests that wait",
    ]
    order += [
        "Time to first token<",
        "Time per output token<",
        "Workers that serve",
        "Arrivals",
        "Decisions",
        "Settings",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_the_page_of_many_long_runs_is_small(one: Run) -> None:
    assert len(page([one]).encode()) < MEGABYTE / 4
    many = [replace(one, name=f"run {index}") for index in range(24)]
    assert len(page(many).encode()) < MEGABYTE


def test_a_comparison_begins_with_the_best(one: Run) -> None:
    worse = one.result.metrics.model_copy(update={"slo_attainment": 0.5})
    text = page([one, Run("worse", one.result.model_copy(update={"metrics": worse}), one.series)])
    assert "<h1>a run has most of 3,000 requests" in text
    assert '<strong class="best">' in text


def test_the_numbers_are_those_of_the_run(one: Run) -> None:
    series = one.series
    assert series is not None
    end_s = 2999 * 0.05
    assert sum(rate for rate in series.rate if rate) * end_s / BINS == pytest.approx(3000, rel=1e-3)
    middle = min(range(len(series.cdf_share)), key=lambda index: abs((series.cdf_share[index] or 0) - 0.5))
    assert series.cdf_ttft_s[middle] == pytest.approx(one.result.metrics.ttft_s.p50, rel=1e-3)
    assert series.cdf_ttft_s[-1] >= max(value for value in series.ttft_p99_s if value is not None) * 0.99  # type: ignore[operator]


def test_nothing_breaks_out_of_the_page(one: Run) -> None:
    evil = '</style></table><script>alert(1)</script><img src=x onerror=alert(1)>" onload="alert(1)\u202e'
    scaling = [Scaling(at_s=1, prefill=1, decode=1, reason=evil)]
    config = {**one.result.config, "run": {"trace": evil, "note": evil}}
    result = one.result.model_copy(update={"scaling": scaling, "command": evil, "commit": evil, "config": config})
    for runs in ([Run(evil, result, one.series)], [Run(evil, result, one.series), one]):
        text = page(runs, [evil])
        assert "<script" not in text
        assert "<img" not in text
        assert 'onload="' not in text
        assert "\u202e" not in text
        assert text.count("&lt;script&gt;alert(1)") > 5


def test_only_the_first_decisions_are_shown(one: Run) -> None:
    scaling = [Scaling(at_s=index, prefill=1, decode=1, reason=f"why-{index}!") for index in range(MOST_DECISIONS + 50)]
    text = page([Run("x", one.result.model_copy(update={"scaling": scaling}), one.series)])
    assert f"why-{MOST_DECISIONS - 1}!" in text
    assert f"why-{MOST_DECISIONS}!" not in text
    assert f"{MOST_DECISIONS + 50} changes of the pools; the first {MOST_DECISIONS}" in text


def test_a_run_of_which_only_the_requests_are_known() -> None:
    """As of a live replay: the queue and the pools follow from them, and from what the planner asked for."""
    records = [RequestRecord(float(at), 10, 3, (at + 2.0, at + 2.1, at + 2.2)) for at in range(100)]
    records.append(RequestRecord(50.0, 10, 3, (), "no answer"))
    scaling = [Scaling(at_s=0, prefill=1, decode=2), Scaling(at_s=40, prefill=3, decode=2)]
    found = series_of_records(records, Slo(3.0, 0.2), scaling)
    queue, wanted = found.gauges
    assert (queue.title, wanted.title) == (QUEUE, WANTED)
    assert max(value or 0 for value in queue.values[""]) == 2  # one comes each second and waits for two
    assert wanted.at_s == [0, 40, 99]
    assert wanted.values["prefill"] == [1, 3, 3]
    assert found.cdf_tbt_s[-1] == pytest.approx(0.1)
    known = [value for value in found.attainment if value is not None]
    assert min(known) < max(known) == 1  # the one that failed is outside
    assert np.isclose(found.cdf_ttft_s[0], 2.0)


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
    assert len(long.series.gauges[0].at_s) <= MOST_SAMPLES + 1


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
