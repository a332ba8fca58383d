"""What is profiled at start-up: the TTFT predictor and Max Running Tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.arrow.startup import DecodeLimits, StartupProfiler, TtftPredictor
from pdplugins.resources import data_dir
from pdplugins.types import Deployment, PerfModel, PlainPerf, Role, Slo

TABLES = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))


class Quadratic(PlainPerf):
    """Prefill as a given quadratic; a decode step takes a microsecond a token."""

    def __init__(self, square: float, linear: float, constant: float) -> None:
        self.of = TtftPredictor(square, linear, constant)

    def prefill_s(self, tokens: float, tp: int) -> float:
        return self.of.prefill_s(tokens)

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 1e-6 * batch * context_tokens + 1e-4 * batch

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        return (1, 4)


def deployment(perf: object, tpot_s: float, max_batch: int = 256) -> Deployment:
    return Deployment(Slo(1.0, tpot_s), perf, 8, 1, 2, 0.0, max_batch)  # type: ignore[arg-type]


@given(st.floats(0, 1e-6), st.floats(1e-6, 1e-3), st.floats(0, 0.1))
def test_a_quadratic_is_found_again(square: float, linear: float, constant: float) -> None:
    found = TtftPredictor.fit(Quadratic(square, linear, constant), 1)  # type: ignore[arg-type]
    for tokens in (64, 1000, 60_000):
        assert found.prefill_s(tokens) == pytest.approx(square * tokens**2 + linear * tokens + constant, rel=1e-6)


def test_a_real_profile_is_met_within_a_fifth() -> None:
    """The profile is uneven, a quadratic is not; between 500 tokens and 64 k the curve is near it."""
    for tp in TABLES.tp_sizes(Role.PREFILL):
        found = TtftPredictor.fit(TABLES, tp)
        off = [found.prefill_s(t) / TABLES.prefill_s(t, tp) - 1 for t in (500, 1000, 2000, 8000, 32_000, 64_000)]
        assert max(map(abs, off)) < 0.2


def test_more_tokens_never_take_less_time_however_odd_the_profile() -> None:
    class Falling(Quadratic):
        def prefill_s(self, tokens: float, tp: int) -> float:
            return 1.0 / (1 + tokens)

    found = TtftPredictor.fit(Falling(0, 0, 0), 1)  # type: ignore[arg-type]
    assert min(found.square, found.linear, found.constant) >= 0


def test_max_running_tokens_is_what_the_slo_or_the_kv_cache_allows() -> None:
    perf = Quadratic(0, 1, 0)  # a full batch of 256 takes 25.6 ms and a microsecond a token
    assert DecodeLimits.find(deployment(perf, 0.05), 1, 10**9) == DecodeLimits(256, 24_400)
    assert DecodeLimits.find(deployment(perf, 0.05), 1, 5000) == DecodeLimits(256, 5000)


def test_a_batch_that_is_too_slow_by_itself_is_halved() -> None:
    limits = DecodeLimits.find(deployment(Quadratic(0, 1, 0), 0.02), 1, 10**9)
    assert limits.requests == 128
    assert limits.tokens > 0


def test_instances_of_other_sizes_are_profiled_on_their_own() -> None:
    perf: PerfModel = TABLES
    profiler = StartupProfiler(Deployment(Slo(1, 0.05), perf, 8, 1, 4, 0.0, 256), None)
    assert profiler.predictor(Role.PREFILL).prefill_s(4000) > 2 * profiler.predictor(Role.DECODE).prefill_s(4000)
    assert profiler.limits(Role.PREFILL, 100_000).tokens <= profiler.limits(Role.DECODE, 100_000).tokens


def test_a_measured_max_running_tokens_wins() -> None:
    assert StartupProfiler(deployment(Quadratic(0, 1, 0), 0.05), 777).limits(Role.DECODE, 10**6).tokens == 777


def test_a_size_without_a_table_takes_the_nearest() -> None:
    assert StartupProfiler(deployment(Quadratic(0, 1, 0), 0.05), None).predictor(Role.DECODE).linear > 0
