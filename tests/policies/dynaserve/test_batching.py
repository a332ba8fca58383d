"""The local scheduler: M within the SLO, order, progress, and what the profile table learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dynaserve.batching import DynaServeBatchScheduler, Step
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings
from pdplugins.policies.dynaserve.steps import adder, grid_steps
from pdplugins.policies.dynaserve.table import ProfileTable
from pdplugins.types import BatchPlan, BatchView, Deployment, QueuedPrefill, Request
from tests.policies.dynaserve.model import DenseModel, Model, deployment_of


def scheduler(deployment: Deployment, **settings: object) -> DynaServeBatchScheduler:
    return DynaServeBatchScheduler(DynaServeBatchSettings.model_validate(settings), deployment)


def queued(name: str, remaining: int, done: int | None = 0) -> QueuedPrefill:
    return QueuedPrefill(Request(name, 0.0, remaining + (done or 0)), remaining, 0.0, done)


def view(*queue: QueuedPrefill, decodes: int = 0, context: int = 1000) -> BatchView:
    return BatchView(queue, decodes, decodes * context)


def whole_step_s(model: Model, plan: BatchPlan, seen: BatchView) -> float:
    """Return the time of a step from the formula of the profile, without any of the scheduler's code."""
    chunks = [(plan.prefill_tokens.get(q.request.id, 0), q.done_tokens or 0) for q in seen.queue]
    chunks = [(new, done) for new, done in chunks if new]
    context = seen.decode_context_tokens / seen.decode_requests if seen.decode_requests else 0
    alone = model.decode_step_s(seen.decode_requests, context, 1) if seen.decode_requests else 0.0
    new = sum(n for n, _ in chunks)
    if not new:
        return alone
    if isinstance(model, DenseModel):
        attention = sum(
            model.prefill_s(h + n, 1) - model.dense_s(h + n, 1) - model.prefill_s(h, 1) + model.dense_s(h, 1)
            for n, h in chunks
        )
        extra = model.dense_s(seen.decode_requests, 1) if seen.decode_requests else 0.0
        return alone + model.dense_s(new + seen.decode_requests, 1) - extra + attention
    earlier = sum(
        model.prefill_s(h + n, 1) - model.prefill_s(h, 1) - model.prefill_s(n, 1) + model.prefill_s(0, 1)
        for n, h in chunks
        if h
    )
    return alone + model.prefill_s(new, 1) + earlier - (model.prefill_s(0, 1) if alone else 0.0)


queues = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 8000)), max_size=12)


@given(queues, st.integers(1, 300), st.integers(1, 8000), st.sampled_from([Model, DenseModel]))
def test_m_never_breaks_the_slo(waiting: list[tuple[int, int]], decodes: int, context: int, kind: type[Model]) -> None:
    """Algorithm 2: with decodes in the step, prompt tokens join only while the step keeps the SLO."""
    model = kind()
    seen = view(*(queued(str(i), *q) for i, q in enumerate(waiting)), decodes=decodes, context=context)
    plan = scheduler(deployment_of(model)).next_batch(seen, 0.0)
    if plan.prefill_tokens:
        assert whole_step_s(model, plan, seen) <= 0.1 * (1 + 1e-6)
    remaining = {q.request.id: q.remaining_tokens for q in seen.queue}
    assert all(0 < tokens <= remaining[name] for name, tokens in plan.prefill_tokens.items())


@pytest.mark.moderate
@given(queues, st.integers(1, 300), st.integers(1, 8000))
def test_what_is_left_of_the_slo_is_used(waiting: list[tuple[int, int]], decodes: int, context: int) -> None:
    """A queue without history and a step with room: another 32 tokens would break the SLO, or nothing waits."""
    model = Model()
    seen = view(*(queued(str(i), tokens) for i, (tokens, _) in enumerate(waiting)), decodes=decodes, context=context)
    tokens = dict(scheduler(deployment_of(model), headroom=0).next_batch(seen, 0.0).prefill_tokens)
    if sum(tokens.values()) == sum(q.remaining_tokens for q in seen.queue):
        return
    tokens["0"] = tokens.get("0", 0) + 32
    assert whole_step_s(model, BatchPlan(tokens), seen) > 0.1


def test_prompts_are_served_in_order_and_the_last_one_is_cut(deployment: Deployment) -> None:
    """Lines 3 to 8: in arrival order, min(r.token, M) of each."""
    seen = view(queued("a", 100), queued("b", 100), queued("c", 5000), queued("d", 10), decodes=10)
    plan = scheduler(deployment).next_batch(seen, 0.0)
    assert list(plan.prefill_tokens) == ["a", "b", "c"]
    assert plan.prefill_tokens["a"] == plan.prefill_tokens["b"] == 100
    assert 0 < plan.prefill_tokens["c"] < 5000


def test_an_empty_queue_is_a_step_of_decodes(deployment: Deployment) -> None:
    assert scheduler(deployment).next_batch(view(decodes=5), 0.0).prefill_tokens == {}


def test_decodes_that_already_break_the_slo_get_no_prefill_beside_them(deployment: Deployment) -> None:
    """All decodes run all the same (line 2): there is nothing to name."""
    seen = view(queued("a", 1000), decodes=300, context=8000)
    assert scheduler(deployment).next_batch(seen, 0.0).prefill_tokens == {}


def test_where_nothing_decodes_the_prefill_goes_on_whatever_the_slo(deployment: Deployment) -> None:
    """No token waits for the step, so that its length is nobody's time between tokens."""
    seen = view(queued("a", 100_000))
    assert scheduler(deployment, tbt_slo_s=1e-6).next_batch(seen, 0.0).prefill_tokens == {"a": 2048}
    small = scheduler(deployment, tbt_slo_s=1e-6, prefill_only_tokens=64).next_batch(seen, 0.0)
    assert small.prefill_tokens == {"a": 64}


def test_a_chunk_late_in_a_long_prompt_is_smaller(deployment: Deployment) -> None:
    """Its tokens attend to all that came before."""
    fresh = scheduler(deployment).next_batch(view(queued("a", 9000), decodes=50), 0.0)
    late = scheduler(deployment).next_batch(view(queued("a", 9000, 30_000), decodes=50), 0.0)
    assert late.prefill_tokens["a"] < fresh.prefill_tokens["a"]


def test_a_host_that_hides_how_much_is_done_gets_smaller_chunks(deployment: Deployment) -> None:
    """The most that can be done is assumed: the prompt less what remains."""
    hidden = QueuedPrefill(Request("a", 0.0, 40_000), 9000, 0.0)
    plan = scheduler(deployment).next_batch(BatchView((hidden,), 50, 50_000), 0.0)
    told = scheduler(deployment).next_batch(view(queued("a", 9000, 31_000), decodes=50), 0.0)
    assert plan.prefill_tokens == told.prefill_tokens


@pytest.mark.parametrize("slower", [1.3, 0.8])
def test_the_table_learns_how_fast_this_gpu_is(deployment: Deployment, slower: float) -> None:
    """Line 1: steps that take longer than modelled bring M down until they keep the SLO, and the other way round."""
    model, batches, took = Model(), scheduler(deployment), 0.0
    seen = view(queued("a", 5000), decodes=50)
    for _ in range(60):
        plan = batches.next_batch(seen, 0.0)
        took = slower * whole_step_s(model, plan, seen)
        batches.on_step(seen, plan, took)
    assert took == pytest.approx(0.099, rel=0.02)


@pytest.mark.parametrize("took", [math.nan, math.inf, 0.0, -1.0, 1e6])
def test_one_bad_measurement_changes_little(deployment: Deployment, took: float) -> None:
    seen = view(queued("a", 5000), decodes=50)
    batches = scheduler(deployment)
    before = batches.next_batch(seen, 0.0)
    batches.on_step(seen, before, took)
    after = batches.next_batch(seen, 0.0)
    assert after.prefill_tokens["a"] >= 0.8 * before.prefill_tokens["a"]


def test_the_table_does_not_grow_with_the_number_of_steps(deployment: Deployment) -> None:
    table = ProfileTable(deployment, 0.1)
    for index in range(5000):
        step = Step(table, view(queued("a", 1 + index % 4000), decodes=index % 200), 0.1)
        step.follow(view(queued("a", 1 + index % 4000)), {"a": 1 + index % 4000})
        step.record(0.05)
    assert len(table._ratios) <= 13 * 9


@given(
    st.sampled_from([Model(), DenseModel()]),
    st.lists(st.integers(0, 30_000), min_size=1, max_size=5),
    st.integers(0, 30_000),
    st.integers(0, 9_000),
    st.integers(0, 200),
    st.booleans(),
)
def test_a_search_reads_the_time_of_each_chunk_as_the_step_does(
    model: Model, chunks: list[int], earlier: int, tokens: int, batch: int, mixes: bool
) -> None:
    steps = grid_steps(model, 1, mixes=mixes)
    added = adder(steps, earlier, tokens, batch)
    assert [added(new) for new in chunks] == [steps.added(new, earlier, tokens, batch) for new in chunks]


def test_a_step_is_as_long_as_the_tightest_tpot_of_its_decodes_allows() -> None:
    """The deployment's is 0.1 s."""
    model, steps = Model(), []
    for own in ((), (0.05, 0.08), (0.2,), (0.2,) * 8, (1e-4,)):
        seen = replace(view(queued("a", 5000), decodes=8), decode_tpots_s=own)
        steps.append(whole_step_s(model, scheduler(deployment_of(model)).next_batch(seen, 0.0), seen))
    usual_s, strict_s, loose_s, patient_s, impossible_s = steps
    assert 0.04 < strict_s <= 0.05 < usual_s <= 0.1
    assert (loose_s, impossible_s) == (usual_s, usual_s)
    assert 0.1 < patient_s <= 0.2


def test_a_tpot_of_its_own_keeps_its_headroom() -> None:
    model, seen = Model(), replace(view(queued("a", 5000), decodes=8), decode_tpots_s=(0.05,))
    plan = scheduler(deployment_of(model), headroom=0.2).next_batch(seen, 0.0)
    assert 0.03 < whole_step_s(model, plan, seen) <= 0.04
