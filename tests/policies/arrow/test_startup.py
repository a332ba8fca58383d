"""What is profiled at start-up: the TTFT predictor and Max Running Tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.arrow.limits import CHANGE, LoadContext, find_limits
from pdplugins.policies.arrow.startup import StartupProfiler, TtftPredictor
from pdplugins.resources import data_dir
from pdplugins.types import Deployment, PerfModel, PlainPerf, Role, Slo

TABLES = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))
H800 = TableModel(read_profile(data_dir("profiles") / "h800" / "llama-3.1-8b.json"))


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

    def kv_capacity_tokens(self, tp: int) -> int:
        return 256_000


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


@pytest.mark.parametrize("tpot_s", [0.012, 0.015])
@pytest.mark.parametrize("context", [600, 1265, 4000])
def test_max_running_tokens_is_the_largest_batch_of_the_loads_context_inside_the_slo(
    context: int, tpot_s: float
) -> None:
    """Searched batch by batch in the profile. A batch of 256 would be slow, and says nothing of these."""
    batch = max(b for b in range(1, 257) if H800.decode_step_s(b, context, 1) <= tpot_s)
    assert 1 < batch < 256
    limits = find_limits(deployment(H800, tpot_s), 1, context)
    assert batch <= limits.tokens / context < batch + 1
    assert limits.full_tokens == limits.tokens


def test_a_full_batch_inside_the_slo_leaves_only_longer_contexts() -> None:
    perf = Quadratic(0, 1, 0)  # a full batch of 256 takes 25.6 ms and a microsecond a token
    limits = find_limits(deployment(perf, 0.05), 1, 10)
    assert (limits.requests, limits.tokens, limits.full_tokens) == (256, 24_400, 2560)


def test_a_batch_that_is_too_slow_without_any_context_is_smaller() -> None:
    assert find_limits(deployment(Quadratic(0, 1, 0), 0.02), 1, 10).requests == 200


def test_one_request_may_always_decode_however_strict_the_slo() -> None:
    limits = find_limits(deployment(Quadratic(0, 1, 0), 1e-9), 1, 500)
    assert (limits.requests, limits.tokens) == (1, 500)


def test_decode_speed_is_that_of_the_steps_of_the_profile() -> None:
    """Tokens read per second at a share of Max Running Tokens, where the profile is nearly linear."""
    limits = find_limits(deployment(H800, 0.012), 1, 1265)
    for batch in (20, 40, 60, 80):
        step_s = H800.decode_step_s(batch, 1265, 1)
        assert limits.speed(1265 * batch) == pytest.approx(1265 * batch / step_s, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 5000)), min_size=1, max_size=300))
def test_the_context_is_the_mean_over_decode_steps(requests: list[tuple[int, int]]) -> None:
    """Each step of each answer counts once; the value in use is never far from the mean."""
    context = LoadContext(1000.0)
    total, steps = 1000.0 * 10_000, 10_000.0
    for prompt, output in requests:
        changed = context.learn(prompt, output)
        total, steps = 0.999 * total, 0.999 * steps
        total += sum(prompt + token + 0.5 for token in range(output))
        steps += output
        mean = total / steps
        assert context.tokens / mean == pytest.approx(1.0, abs=CHANGE - 1)
        assert not changed or context.tokens == pytest.approx(mean)


def test_equal_requests_change_the_context_only_until_it_is_theirs() -> None:
    context = LoadContext(10_000.0)
    changes = [index for index in range(3000) if context.learn(1000, 200)]
    assert 1100 / CHANGE <= context.tokens <= 1100 * CHANGE
    assert len(changes) < 30
    assert changes[-1] < 1500


def test_limits_follow_the_load_and_the_first_guess_fills_the_kv_cache() -> None:
    """Instances keep the object that they got; nobody needs to tell them."""
    profiler = StartupProfiler(deployment(H800, 0.012), None)
    limits = profiler.limits(Role.PREFILL)  # of TP 1
    guess = H800.kv_capacity_tokens(2) / 256  # of a decode worker
    assert limits == find_limits(deployment(H800, 0.012), 1, guess)
    for _ in range(3000):
        profiler.learn(200, 100)
    short = find_limits(deployment(H800, 0.012), 1, 250)
    assert limits.tokens == pytest.approx(short.tokens, rel=0.2)
    assert limits.tokens < 0.8 * find_limits(deployment(H800, 0.012), 1, guess).tokens


def test_instances_of_other_sizes_are_profiled_on_their_own() -> None:
    perf: PerfModel = TABLES
    profiler = StartupProfiler(Deployment(Slo(1, 0.05), perf, 8, 1, 4, 0.0, 256), None)
    assert profiler.predictor(Role.PREFILL).prefill_s(4000) > 2 * profiler.predictor(Role.DECODE).prefill_s(4000)
    assert profiler.limits(Role.PREFILL).tokens < profiler.limits(Role.DECODE).tokens


def test_a_measured_max_running_tokens_wins() -> None:
    profiler = StartupProfiler(deployment(Quadratic(0, 1, 0), 0.05), 777)
    for _ in range(3000):
        profiler.learn(10, 1000)
    assert profiler.limits(Role.DECODE).tokens == 777


def test_a_size_without_a_table_takes_the_nearest() -> None:
    assert StartupProfiler(deployment(Quadratic(0, 1, 0), 0.05), None).predictor(Role.DECODE).linear > 0
