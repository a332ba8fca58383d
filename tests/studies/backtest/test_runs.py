"""How traffic is rebuilt from histograms, and how recorded workers are simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.config import MOST_GPUS, Choice, find, load, parse
from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.workers import Pool
from pdplugins.errors import ConfigError
from pdplugins.hosts.dynamo.scrape import Histogram
from pdplugins.results import Spread
from pdplugins.studies.backtest import frontend, runs
from pdplugins.studies.backtest.commands import moment
from pdplugins.studies.backtest.recording import Pools, Recording, changes, quantile, total
from tests.studies.backtest.recorded import config, traffic

INF = float("inf")


def histogram(values: np.ndarray[tuple[int], np.dtype[np.float64]], bounds: tuple[float, ...]) -> Histogram:
    return Histogram(len(values), float(values.sum()), tuple((b, float((values <= b).sum())) for b in (*bounds, INF)))


def test_lengths_have_the_mean_that_was_recorded_and_stay_near_their_buckets() -> None:
    rng = np.random.default_rng(1)
    values = np.clip(rng.lognormal(6.5, 1.0, 50_000), 1, 20_000)
    bounds = (100.0, 300.0, 1000.0, 3000.0, 10_000.0)
    drawn = frontend._lengths(rng, histogram(values, bounds), histogram(values, bounds), 50_000)
    assert drawn.mean() == pytest.approx(values.mean(), rel=0.03)
    for bound in bounds:
        assert (drawn <= bound).mean() == pytest.approx((values <= bound).mean(), abs=0.08)


def test_lengths_without_buckets_have_the_mean_and_a_spread() -> None:
    bare = Histogram(100.0, 50_000.0, ())
    drawn = frontend._lengths(np.random.default_rng(0), bare, bare, 20_000)
    assert drawn.mean() == pytest.approx(500.0, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(np.sqrt(np.exp(frontend.SPREAD**2) - 1), rel=0.1)


@given(st.lists(st.floats(1, 1e5), min_size=1, max_size=50), st.integers(0, 3))
def test_any_histogram_gives_lengths(values: list[float], cut: int) -> None:
    bounds = (10.0, 1000.0, 100_000.0)[:cut]
    found = histogram(np.array(values), bounds)
    drawn = frontend._lengths(np.random.default_rng(0), found, found, 20)
    assert ((drawn >= 1) & (drawn < 1e7)).all()


def test_quantiles_are_linear_within_a_bucket_and_unknown_beyond_the_last() -> None:
    found = Histogram(10.0, 0.0, ((1.0, 4.0), (2.0, 8.0), (INF, 10.0)))
    assert quantile(found, 0.2) == pytest.approx(0.5)
    assert quantile(found, 0.6) == pytest.approx(1.5)
    assert quantile(found, 0.9) is None
    assert quantile(Histogram(0.0, 0.0, ()), 0.5) is None
    assert total([found, found]).bounds == ((1.0, 8.0), (2.0, 16.0), (INF, 20.0))


def test_only_changes_of_pools_are_kept() -> None:
    pools = [Pools(0, 1, 1), Pools(5, 1, 1), Pools(10, 2, 1), Pools(15, 2, 1), Pools(20, 1, 1)]
    assert changes(pools) == (Pools(0, 1, 1), Pools(10, 2, 1), Pools(20, 1, 1))


def recording(pools: tuple[Pools, ...]) -> Recording:
    return Recording("test", traffic(4.0, 300.0), 300.0, Spread(), Spread(), None, (), pools, ())


def test_workers_are_asked_for_before_they_were_there() -> None:
    planner = runs.RecordedPools((Pools(0, 1, 1), Pools(100, 3, 1), Pools(200, 1, 2)), 30.0)

    def wanted(now_s: float) -> tuple[int, int]:
        plan = planner.plan(PlannerView(now_s, None, Pool(1), Pool(1)))
        return plan.prefill, plan.decode

    assert [wanted(at_s) for at_s in (0, 69, 71, 150, 171, 205)] == [(1, 1), (1, 1), (3, 1), (3, 1), (3, 2), (1, 2)]


@pytest.mark.moderate
def test_recorded_changes_of_the_workers_are_simulated() -> None:
    """More workers for the second half: as many GPU-hours as were recorded, and better than without them."""
    base = config(1, 1)
    small, *_ = runs._as_it_ran(recording((Pools(0, 1, 1),)), base, 0)
    grown, *_ = runs._as_it_ran(recording((Pools(0, 1, 1), Pools(150, 4, 1))), base, 0)
    assert small.gpus == pytest.approx(3.0, rel=0.01)
    assert grown.gpus == pytest.approx((3 * 120 + 6 * 180) / 300, rel=0.05)  # they start 30 s before they serve
    assert grown.attainment > small.attainment
    assert grown.pools == "from 1P1D"


@pytest.mark.moderate
def test_a_planner_is_added_to_what_runs() -> None:
    """On the router of the recording, from its pools."""
    started = runs._started(load(find("dopd")), (Pools(0, 3, 1),), "cache-aware")
    assert started.router == Choice(name="cache-aware")
    assert started.batch_scheduler is None
    assert started.planner == load(find("dopd")).planner
    assert (started.deployment.prefill.replicas, started.deployment.decode.replicas) == (3, 1)
    assert runs._started(load(find("arrow")), (), "cache-aware").router == load(find("arrow")).router


@pytest.mark.parametrize("name", ["arrow", "stock-colocated"])
def test_a_config_without_a_planner_is_simulated_as_it_is_written(name: str) -> None:
    assert runs._started(load(find(name)), (Pools(0, 3, 1),), "cache-aware") == load(find(name))


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    held = recording((Pools(0, 1, 1),))
    short = [replace(one, osl_tokens=1) for one in held.requests[::2]]
    mixed = replace(held, requests=sorted([*short, *held.requests[1::2]], key=lambda one: one.arrival_s))
    ran, itl, _ = runs._as_it_ran(mixed, config(1, 1), 0)
    assert itl.mean is not None
    assert ran.metrics.tpot_s.mean is not None
    assert itl.mean > 1.5 * ran.metrics.tpot_s.mean


def test_splits_stay_within_the_gpus_and_are_few() -> None:
    small = runs._splits(config())
    assert len(small) == 12
    assert max(prefill + 2 * decode for prefill, decode in small) == 8
    large = config().deployment.model_copy(update={"gpu_budget": 200})
    assert len(runs._splits(config().model_copy(update={"deployment": large}))) <= runs.MOST_SPLITS
    assert replace(recording(()), pools=(Pools(0, 2, 1),)).gpu_s(1, 2) == 1200.0


@pytest.mark.parametrize("gpus", [8, 100, MOST_GPUS])
def test_splits_of_any_number_of_gpus_are_few_and_span_it(gpus: int) -> None:
    data = config().model_dump(mode="json")
    data["deployment"]["gpu_budget"] = gpus
    found = runs._splits(parse(data))
    assert len(found) <= runs.MOST_SPLITS
    assert found[0] == (1, 1)
    used = [prefill + 2 * decode for prefill, decode in found]
    assert used == sorted(used)
    assert used[-1] <= gpus
    if gpus == 8:
        assert len(found) == 12
    assert used[-1] > 0.7 * gpus


def test_gpus_that_hold_no_split_are_told_in_one_line() -> None:
    pools = {"prefill": {"replicas": 1, "tp": 4}, "decode": {"replicas": 0, "tp": 4}}
    data = {"deployment": {"gpu_budget": 4, **pools}, "simulation": {"flip": "label"}}
    with pytest.raises(ConfigError, match="no prefill and decode worker of TP 4 and 4 fit 4 GPUs together; raise"):
        runs._splits(parse(data))


@pytest.mark.parametrize("text", ["9" * 400, "1e20", "9" * 12, f"-{'9' * 400}d", "-99999d", "0001-01-01T00:00:00Z"])
def test_a_time_that_no_clock_has_told_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--to .*: no time; write 2026-05-04T12:00:00Z"):
        moment(text, "--to", 1.8e9)
    assert moment("-2h", "--to", 1.8e9) == 1.8e9 - 7200
