"""Closed forms of decode steps against adding them up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.perf.table import TableModel
from pdplugins.runtime.assembly import load_profile
from pdplugins.sim.core.clock import ticks
from pdplugins.sim.core.steps import Line, StepTimes
from pdplugins.types import Role
from tests.sim.models import BentModel

LINES = st.builds(
    lambda batch, rises: Line(
        batch, [0.0, 100.0, 300.5, 701.0, 1500.0], [0.01 + sum(rises[: n + 1]) for n in range(5)], 1.0
    ),
    st.integers(1, 300),
    st.lists(st.floats(0, 0.02), min_size=5, max_size=5),
)


@given(LINES, st.integers(1, 200_000), st.integers(0, 600))
def test_the_time_of_a_run_is_the_sum_of_its_steps(line: Line, context: int, steps: int) -> None:
    assert line.span(context, steps) == sum(line.step(context + n * line.batch) for n in range(steps))


@given(LINES, st.integers(1, 200_000), st.integers(1, 10**15))
def test_until_finds_the_end_of_the_step_in_progress(line: Line, context: int, time: int) -> None:
    steps, took = line.until(context, time)
    assert took == line.span(context, steps) >= time
    assert line.span(context, steps - 1) < time


@given(LINES, st.integers(1, 400_000))
def test_a_longer_context_never_takes_less_time(line: Line, context: int) -> None:
    assert line.step(context) <= line.step(context + 1)


def test_steps_agree_with_the_model_to_a_nanosecond() -> None:
    model, times = BentModel(), StepTimes(BentModel(), 1)
    for batch in (1, 7, 64):
        for mean in (10, 100, 250, 300, 999, 1500, 4000):
            step_s = times.line(batch).step(batch * mean) / 10**14
            assert abs(step_s - model.decode_step_s(batch, mean, 1)) < 1e-9


def test_a_chunk_with_history_costs_what_it_adds_to_the_prompt() -> None:
    times = StepTimes(BentModel(), 1)
    whole, halves = times.prefill([(2000, 0)]), times.prefill([(1000, 0)]) + times.prefill([(1000, 1000)])
    overhead = times.prefill([(0, 0)])
    assert abs(halves - whole - overhead) <= 4


class SplitModel(BentModel):
    """Knows the dense part of its steps."""

    def dense_s(self, tokens: float, tp: int) -> float:
        return 0.004 + 1e-5 * tokens


def test_where_the_dense_part_is_known_chunks_share_it_and_pay_their_own_attention() -> None:
    model, times = SplitModel(), StepTimes(SplitModel(), 1)

    def attention(tokens: int) -> float:
        return model.prefill_s(tokens, 1) - model.dense_s(tokens, 1)

    want = model.dense_s(700, 1) + attention(500) + attention(1000) - attention(800)
    assert abs(times.prefill([(500, 0), (200, 800)]) / 10**14 - want) < 1e-9
    saved = model.dense_s(700, 1) + model.dense_s(32, 1) - model.dense_s(732, 1)
    mixed = times.mixed([(500, 0), (200, 800)], 32, 32 * 300)
    assert abs(mixed / 10**14 - (want + model.decode_step_s(32, 300, 1) - saved)) < 1e-9


def test_the_scale_of_mixed_steps_changes_what_prefill_adds_and_nothing_else() -> None:
    chunks, batch, context = [(50, 0), (20, 80)], 32, 32 * 300
    times = {scale: StepTimes(SplitModel(), 1, scale) for scale in (0.8, 1.0, 1.2)}
    decode = times[1.0].line(batch).step(context)
    added = {scale: model.mixed(chunks, batch, context) - decode for scale, model in times.items()}
    assert added[1.2] == pytest.approx(1.2 * added[1.0], abs=1)
    assert added[0.8] == pytest.approx(0.8 * added[1.0], abs=1)
    for model in times.values():
        assert model.prefill(chunks) == times[1.0].prefill(chunks)
        assert model.mixed(chunks, 0, 0) == model.prefill(chunks)
        assert model.line(batch).step(context) == decode


def test_without_mixed_steps_one_stands_for_two() -> None:
    chunks, batch, context = [(50, 0), (20, 80)], 32, 32 * 300
    times = StepTimes(SplitModel(), 1, mixes=False)
    assert times.mixed(chunks, batch, context) == times.prefill(chunks) + times.line(batch).step(context)


def test_a_mixed_step_takes_at_least_as_long_as_either_phase_alone() -> None:
    times = StepTimes(SplitModel(), 1, 0.01)
    for tokens, batch in ((8000, 1), (1, 64)):
        decode, prefill = times.line(batch).step(batch * 300), times.prefill([(tokens, 0)])
        assert times.mixed([(tokens, 0)], batch, batch * 300) >= max(decode, prefill)


@pytest.mark.parametrize("batch", [1, 3, 64, 5000])
def test_lines_of_a_table_agree_with_its_single_steps(batch: int) -> None:
    """Inside the table, at its knots, and beyond its ends."""
    perf = load_profile("h100/llama-3.1-70b-fp8")
    tp = perf.tp_sizes(Role.DECODE)[0]
    line = StepTimes(perf, tp).line(batch)
    for context in (0, 1, 100, 1024, 2000, 8192, 100_000, 1_000_000):
        assert line.step(context * batch) == pytest.approx(ticks(perf.decode_step_s(batch, context, tp)), rel=1e-6)


class Derived(TableModel):
    """Asked for each time, for it may have methods of its own."""


@pytest.mark.parametrize("name", ["h100/llama-3.1-70b-fp8", "a100/qwen2.5-14b"])
def test_prefill_times_are_the_tables_to_the_last_tick(name: str) -> None:
    perf = load_profile(name)
    assert isinstance(perf, TableModel)
    tp = perf.tp_sizes(Role.PREFILL)[0]
    quick, slow = StepTimes(perf, tp), StepTimes(Derived(perf.profile), tp)
    for tokens in (*range(3000), 8191, 8192, 100_000, 1_000_000):
        assert quick.prefill([(tokens, 0)]) == slow.prefill([(tokens, 0)])
        assert quick.prefill([(tokens, 700), (5, 0)]) == slow.prefill([(tokens, 700), (5, 0)])
