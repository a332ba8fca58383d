"""Synthetic workloads: seeded, of the rate, burstiness and lengths that were asked for."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, variance
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pdplugins.errors import TraceError
from pdplugins.types import TraceRequest
from pdplugins.workloads import arrivals as processes
from pdplugins.workloads import traces
from pdplugins.workloads.rows import LARGEST, MAX_TOKENS
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic


def make(**settings: Any) -> list[TraceRequest]:
    return list(synthetic(SyntheticSettings.model_validate(settings)))


def arrivals(kind: str, duration_s: float = 4000, **settings: Any) -> list[float]:
    made = make(duration_s=duration_s, arrivals={"kind": kind, **settings})
    return [request.arrival_s for request in made]


def per_window(times_s: list[float], window_s: float = 10.0) -> list[int]:
    return np.bincount((np.asarray(times_s) // window_s).astype(int)).tolist()


PROCESSES = st.sampled_from(
    [
        {"kind": "constant", "rate": 3.0},
        {"kind": "poisson", "rate": 3.0},
        {"kind": "gamma", "rate": 3.0, "cv": 4.0},
        {"kind": "mmpp"},
        {"kind": "ramp", "rate": 0.0, "to_rate": 6.0},
        {"kind": "ramp", "rate": 6.0, "to_rate": 0.0},
    ]
)


@pytest.mark.moderate
@given(PROCESSES, st.floats(0.1, 90), st.integers(1, 200), st.integers(0, 9))
def test_arrivals_ascend_and_stay_inside_both_limits(process, duration_s: float, requests: int, seed: int) -> None:
    made = make(arrivals=process, duration_s=duration_s, requests=requests, seed=seed)
    times_s = [request.arrival_s for request in made]
    assert times_s == sorted(times_s)
    assert len(times_s) <= requests
    assert all(0 <= at_s < duration_s for at_s in times_s)
    assert make(arrivals=process, duration_s=duration_s, requests=requests, seed=seed) == made


def test_another_seed_gives_another_trace() -> None:
    assert make() != make(seed=1)


@pytest.mark.moderate
@pytest.mark.parametrize("process", [{"kind": "constant"}, {"kind": "poisson"}, {"kind": "gamma", "cv": 2.0}])
def test_the_rate_is_what_was_asked_for(process: dict[str, Any]) -> None:
    assert len(arrivals(**process, rate=5)) / 4000 == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_coefficient_of_variation(cv: float) -> None:
    gaps_s = [b - a for a, b in pairwise(arrivals("gamma", rate=5, cv=cv))]
    assert math.sqrt(variance(gaps_s)) / mean(gaps_s) == pytest.approx(cv, rel=0.1)


@pytest.mark.moderate
def test_mmpp_is_burstier_than_poisson_and_poisson_is_not() -> None:
    bursty, plain = per_window(arrivals("mmpp")), per_window(arrivals("poisson", rate=5))
    assert variance(bursty) > 5 * mean(bursty)
    assert variance(plain) == pytest.approx(mean(plain), rel=0.2)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    counts = per_window(arrivals("ramp", rate=2, to_rate=10), window_s=1000)
    assert counts == pytest.approx([3000, 5000, 7000, 9000], rel=0.06)


def test_closed_clients_send_one_request_after_the_other_without_history() -> None:
    closed = {"kind": "closed", "clients": 3, "requests_each": 4, "think_s": 1.5}
    made = make(arrivals=closed, isl_tokens=100, osl_tokens=7)
    assert [request.arrival_s for request in made] == [0.0] * 3
    assert all(list(request.turns()) == [(0, 100, 7)] * 4 for request in made)
    assert {later.gap_s for request in made for later in request.rounds} == {1.5}


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (700, 700),
        ({"kind": "normal", "mean": 700, "std": 50}, 700),
        ({"kind": "lognormal", "median": 700, "sigma": 1.0, "high": 9000}, 700),
        ({"kind": "uniform", "low": 400, "high": 1000}, 700),
        ({"kind": "exponential", "mean": 700}, 700 * math.log(2)),
    ],
)
def test_lengths_have_the_median_of_their_distribution(lengths: object, expected: float) -> None:
    made = [request.isl_tokens for request in make(isl_tokens=lengths, duration_s=3000)]
    assert median(made) == pytest.approx(expected, rel=0.08)
    assert all(length >= 1 for length in made)


def test_lengths_stay_inside_their_limits_and_pairs_stay_pairs() -> None:
    narrow = {"kind": "lognormal", "median": 100, "sigma": 3, "low": 50, "high": 200}
    lengths = {request.isl_tokens for request in make(isl_tokens=narrow)}
    assert (min(lengths), max(lengths)) == (50, 200)
    assert {(r.isl_tokens, r.osl_tokens) for r in make(pairs=[[8000, 128], [500, 500]])} == {(8000, 128), (500, 500)}


def test_phases_follow_each_other_and_inherit_what_they_do_not_say() -> None:
    phases = [{"isl_tokens": 8000, "osl_tokens": 128}, {"isl_tokens": 500}]
    made = make(requests=1000, osl_tokens=500, arrivals={"kind": "poisson", "rate": 5}, phases=phases)
    assert [(r.isl_tokens, r.osl_tokens) for r in made] == [(8000, 128)] * 1000 + [(500, 500)] * 1000
    assert [r.arrival_s for r in made] == sorted(r.arrival_s for r in made)
    timed = make(duration_s=50, arrivals={"kind": "constant", "rate": 1}, phases=[{}, {}])
    assert max(b.arrival_s - a.arrival_s for a, b in pairwise(timed)) <= 2.0
    assert timed[-1].arrival_s == pytest.approx(99)


def test_sessions_repeat_the_conversation_so_far_after_a_gap() -> None:
    sessions = {"rounds": 3, "gap_s": {"kind": "exponential", "mean": 4}, "new_tokens": 20, "osl_tokens": 5}
    made = make(isl_tokens=100, osl_tokens=10, sessions=sessions, requests=400)
    assert all(list(r.turns()) == [(0, 100, 10), (110, 130, 5), (135, 155, 5)] for r in made)
    assert len({request.session for request in made}) == 400
    assert mean(later.gap_s for r in made for later in r.rounds) == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": 4}, "Extra inputs"),
        ({"arrivals": {"kind": "ramp", "rate": 1, "to_rate": 2}}, "a ramp needs duration_s"),
        ({"arrivals": {"kind": "poisson", "rate": math.nan}}, "greater than 0|finite"),
        ({"pairs": [[0, 5]]}, "at least 1"),
        ({"isl_tokens": {"kind": "normal", "mean": 5, "std": -1}}, "greater than or equal to 0"),
        ({"phases": [{"arrivals": {"kind": "later"}}]}, "later"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make(**wrong)


@pytest.mark.parametrize(
    "settings",
    [
        {"duration_s": 1e12},
        {"duration_s": 1e9, "arrivals": {"kind": "poisson", "rate": 4}},
        {"duration_s": 10, "arrivals": {"kind": "ramp", "rate": 1, "to_rate": 1e9}},
        {"arrivals": {"kind": "closed", "clients": 2, "requests_each": 10**9}},
        {"requests": 100, "arrivals": {"kind": "mmpp", "rate": 1e12}},
        {"requests": 1000, "sessions": {"rounds": 10**7, "gap_s": 1, "new_tokens": 5}},
    ],
)
def test_what_is_too_large_for_any_memory_is_refused_before_it_is_drawn(settings: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"a workload of more than 100,000,000 requests .*; make it shorter"):
        make(**settings)


def test_phases_and_mixes_are_too_large_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST", 50)
    steady = {"kind": "constant", "rate": 1}
    assert len(make(requests=30, arrivals=steady)) == 30
    with pytest.raises(TraceError, match="a workload of more than 50 requests"):
        make(requests=30, arrivals=steady, phases=[{}, {}])
    mix = tmp_path / "mix.yaml"
    part = "{trace: 'synthetic:requests=30,arrivals.kind=constant,arrivals.rate=1'}"
    mix.write_text(f"mix: [{part}, {part}]")
    with pytest.raises(TraceError, match="a workload of more than 50 requests"):
        traces.read(mix)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"requests": 10**10}, "less than or equal to 100000000"),
        ({"arrivals": {"kind": "poisson", "rate": 1e-300}}, "greater than or equal to 0.000001"),
        ({"arrivals": {"kind": "gamma", "rate": 4, "cv": 1e-300}}, "greater than or equal to 0.000001"),
        ({"arrivals": {"kind": "mmpp", "calm_s": 1e-9}}, "greater than or equal to 0.001"),
        ({"isl_tokens": {"kind": "uniform", "low": 5, "high": 1}}, "low is 5, above high, which is 1"),
        ({"isl_tokens": 1e300}, "less than or equal to"),
        ({"pairs": [[1, 10**30]]}, "at least 1, and at most 10000000"),
    ],
)
def test_numbers_that_nobody_means_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make(**settings)


def test_draws_without_a_bound_are_lengths_and_times_all_the_same() -> None:
    wild = {"kind": "lognormal", "median": 1e9, "sigma": 100}
    made = make(requests=200, isl_tokens=wild, osl_tokens=wild, sessions={"rounds": 2, "gap_s": wild, "new_tokens": 1})
    assert all(1 <= request.isl_tokens <= MAX_TOKENS and 1 <= request.osl_tokens <= MAX_TOKENS for request in made)
    assert all(0 <= later.gap_s <= LARGEST for request in made for later in request.rounds)
