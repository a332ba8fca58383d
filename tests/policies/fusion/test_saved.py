"""Saved time: where it pays, what a step may spend of it, that no answer pays more than the cap; and what is owed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.batching import FusionBatchScheduler
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.costs import LONG
from pdplugins.policies.fusion.plugin import build
from pdplugins.policies.fusion.saved import EXACT, MOST_OWED, PAID, Saved
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import deployment, request
from pdplugins.types import BatchPlan, BatchView, QueuedPrefill

EXPERTS = deployment(
    load_profile("h200/qwen3-235b-a22b-fp8"), any_role=True, prefill_tp=8, decode_tp=8, gpu_budget=16, ttft_s=0.24,
    tpot_s=0.012,
)  # fmt: skip
"""A mixture of experts whose decodes leave little of the TPOT: small chunks are dear."""
DECODES = 12
CHUNK, NOTHING = BatchPlan({"0": 100}), BatchPlan({})
"""What a step with a prompt runs beside its decodes, and one without."""


def made(**settings: float) -> Core:
    core = Core(FusionSettings(**settings), EXPERTS)
    core.costs.answers(256)
    return core


def view(decodes: int, *waiting: int, own: tuple[float, ...] = ()) -> BatchView:
    queue = tuple(QueuedPrefill(request(str(index), tokens), tokens, 0.0, 0) for index, tokens in enumerate(waiting))
    return BatchView(queue, decodes, 270 * decodes, own)


def alone_s(core: Core, decodes: int) -> float:
    return core.costs.decode_s(decodes, 270.0)


def test_time_is_saved_where_larger_chunks_pay() -> None:
    """A mixture of experts reads its weights for each chunk. On a dense model a token costs the same in any."""
    dense = Core(FusionSettings(), deployment(load_profile("a100/qwen2.5-14b"), any_role=True))
    assert made().costs.pace(DECODES, 270 * DECODES).saves
    assert not dense.costs.pace(DECODES, 270 * DECODES).saves


def test_time_is_saved_on_dense_models_too_where_answers_are_known_to_be_long() -> None:
    """There a prompt is done in one step instead of several, and few answers are short enough to pay for it."""
    profile = load_profile("h20/llama-3.1-70b")
    dense = Core(FusionSettings(), deployment(profile, any_role=True, prefill_tp=8, decode_tp=8, tpot_s=0.05))
    for tokens, saves in ((256.0, True), (LONG / 2, False), (256.0, True)):
        dense.costs.answers(tokens)
        assert dense.costs.pace(DECODES, 270 * DECODES).saves is saves


@pytest.mark.parametrize("sized_here", [False, True])
def test_long_answers_count_only_where_the_same_process_sizes_the_steps(*, sized_here: bool) -> None:
    """Engines in processes of their own hear of no answers, and save what the prior allows."""
    core = Core(FusionSettings(), deployment(load_profile("a100/qwen2.5-14b"), any_role=True))
    if sized_here:
        FusionBatchScheduler(core)
    for index in range(200):
        core.lengths.began(request(str(index), 1000))
        core.lengths.ended(request(str(index), 1000), 256)
    core.look([], 1.0)
    assert core.costs.pace(100, 100_000).saves is sized_here


def test_steps_that_only_decode_save_what_is_left_of_the_slo_up_to_the_cap() -> None:
    core = made()
    saved, decodes = Saved(core.costs), DECODES
    assert saved.before(view(decodes), 0.0, 1.0) == 0.0
    left = core.costs.step_s / alone_s(core, decodes) - 1
    assert saved.before(view(decodes), 0.1, 1.0) == pytest.approx(0.1 * left)
    cap_s = core.costs.most_saved_s(alone_s(core, decodes), core.costs.step_s)
    assert saved.before(view(decodes), 1e6, 1.0) == pytest.approx(cap_s)


def test_a_longer_step_spends_it_and_an_idle_engine_keeps_none() -> None:
    core = made()
    saved = Saved(core.costs)
    saved.before(view(DECODES), 0.0, 1.0)
    has_s = saved.before(view(DECODES), 0.1, 1.0)
    assert has_s > 0
    saved.after(view(DECODES), CHUNK, core.costs.step_s + has_s / 2)
    assert saved.before(view(DECODES), 0.1 + core.costs.step_s + has_s / 2, 1.0) == pytest.approx(has_s / 2)
    assert saved.before(view(0), 2.0, 1.0) == 0.0
    assert saved.before(view(DECODES), 2.0, 1.0) == 0.0


def test_a_host_that_reports_every_step_saves_what_these_say() -> None:
    """Its engine composes a step while another one runs: the time between two calls is not that of decodes alone."""
    core = made()
    saved = Saved(core.costs)
    saved.before(view(DECODES), 0.0, 1.0)
    saved.after(view(DECODES), NOTHING, 0.75 * core.costs.step_s)
    for now_s in (0.1, 0.2):
        assert saved.before(view(DECODES), now_s, 1.0) == pytest.approx(0.25 * core.costs.step_s)


def test_a_step_that_is_not_reported_yet_has_spent_what_it_takes() -> None:
    core = made()
    saved, step_s = Saved(core.costs), core.costs.step_s
    saved.before(view(DECODES), 0.0, 1.0)
    saved.after(view(DECODES), NOTHING, 0.5 * step_s)
    assert saved.before(view(DECODES), 0.1, 1.0) == pytest.approx(0.5 * step_s)
    saved.composed(CHUNK, 1.5 * step_s, 0.1)
    saved.after(view(DECODES), BatchPlan({"of another queue": 100}), step_s)
    assert saved.before(view(DECODES), 0.1 + step_s, 1.0) == 0.0
    saved.after(view(DECODES), CHUNK, 1.3 * step_s)
    assert saved.before(view(DECODES), 0.1 + step_s, 1.0) == pytest.approx(0.2 * step_s)
    saved.composed(CHUNK, 1.2 * step_s, 0.2)
    saved.composed(NOTHING, 1.2 * step_s, 0.2)
    assert saved.before(view(DECODES), 0.2 + 2.5 * step_s, 1.0) == pytest.approx(0.2 * step_s), "it was never run"


def test_nothing_is_spent_beside_a_request_with_a_tpot_of_its_own() -> None:
    saved = Saved(made().costs)
    saved.before(view(DECODES), 0.0, 1.0)
    assert saved.before(view(DECODES, own=(0.011,)), 10.0, 1.0) == 0.0


def test_without_a_share_every_step_keeps_the_slo() -> None:
    core = made(saved_share=0.0)
    saved = Saved(core.costs)
    saved.before(view(DECODES), 0.0, 1.0)
    assert saved.before(view(DECODES), 10.0, 1.0) == 0.0
    assert not core.costs.pace(DECODES, 270 * DECODES).saves


def test_it_waits_for_a_larger_chunk_but_not_for_long() -> None:
    """Where what is saved does not grow as the profile says, prompts must not wait for ever."""
    core = made()
    saved, waiting = Saved(core.costs), view(DECODES, 8000)
    saved.before(waiting, 0.0, 1.0)
    assert saved.waits(waiting, 30, 0.0)
    assert not saved.waits(view(DECODES, 30), 30, 0.0), "all that waits fits"
    assert saved.waits(waiting, 30, 0.05)
    assert saved.waits(waiting, 30, core.costs.gather_s)
    assert not saved.waits(waiting, 30, 0.1 + core.costs.gather_s)


DENSE = deployment(load_profile("a100/qwen2.5-14b"), any_role=True)


def owing(saved: Saved, step_s: float, late_s: float) -> BatchView:
    """Let a step take so much too long; return what the engine has then."""
    busy = view(DECODES, 8000)
    saved.before(busy, 0.0, 1.0)
    saved.after(busy, CHUNK, step_s + late_s)
    return busy


def test_a_step_that_took_too_long_is_made_up_for_in_parts() -> None:
    costs = Core(FusionSettings(), DENSE).costs
    saved, now_s, owed_s = Saved(costs), 1.2 * costs.step_s, (0.2 - EXACT) * costs.step_s
    busy = owing(saved, costs.step_s, 0.2 * costs.step_s)
    for _ in range(5):
        less_s = -saved.before(busy, now_s, 1.0)
        assert less_s == pytest.approx(PAID * owed_s)
        saved.after(busy, CHUNK, costs.step_s - less_s)
        now_s += costs.step_s - less_s
        owed_s -= less_s + EXACT * costs.step_s


def test_steps_that_only_decode_make_up_for_it_too() -> None:
    costs = Core(FusionSettings(), DENSE).costs
    saved, now_s = Saved(costs), 1.2 * costs.step_s
    busy = owing(saved, costs.step_s, 0.2 * costs.step_s)
    before_s = saved.before(busy, now_s, 1.0)
    quiet_s = -before_s / PAID / (costs.step_s / costs.decode_s(DECODES, 270.0) - 1)
    assert saved.before(busy, now_s + quiet_s / 2, 1.0) == pytest.approx(before_s / 2)
    assert saved.before(busy, now_s + 2 * quiet_s, 1.0) == 0.0


def test_prompts_wait_for_no_more_than_a_part_of_a_step() -> None:
    costs = Core(FusionSettings(), DENSE).costs
    saved = Saved(costs)
    for late_s in (10.0, 1e300, math.inf, math.nan):
        busy = owing(saved, costs.step_s, late_s)
    assert saved.before(busy, 0.0, 1.0) == pytest.approx(-PAID * MOST_OWED * costs.step_s)


def test_decodes_that_are_beyond_the_tpot_by_themselves_owe_nothing() -> None:
    costs = Core(FusionSettings(), DENSE).costs
    crowd = 4096
    assert costs.decode_s(crowd, 270.0) > costs.step_s
    saved = Saved(costs)
    saved.after(view(crowd, 8000), CHUNK, 2 * costs.step_s)
    assert saved.before(view(crowd, 8000), 0.0, 1.0) == 0.0


@pytest.mark.parametrize("late", [False, True])
@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=300))
def test_with_predictions_off_by_up_to_a_fifth_the_mean_step_keeps_the_slo(late: bool, errors: list[float]) -> None:
    """Also in an engine that composes a step before it knows how long the one before took."""
    costs = Core(FusionSettings(), DENSE).costs
    saved, busy, now_s, unknown_s = Saved(costs), view(DECODES, 8000), 0.0, None
    for error in errors:
        took_s = (costs.step_s + saved.before(busy, now_s, 1.0)) * (1 + error)
        known_s, unknown_s = (unknown_s, took_s) if late else (took_s, None)
        if known_s is not None:
            saved.after(busy, CHUNK, known_s)
        now_s += took_s
    assert now_s <= (len(errors) * (1 + EXACT) + MOST_OWED + 0.4) * costs.step_s


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 19),
    st.sampled_from([0.02, 0.1, 0.5]),
)
def test_no_answer_pays_more_than_the_cap(arrivals: list[tuple[int, bool]], decodes: int, share: float) -> None:
    """Over any steps the time is at most theirs within the SLO, and once the cap: whenever an answer begins or ends."""
    core = made(saved_share=share)
    make = build(FusionSettings(saved_share=share), EXPERTS).batch_scheduler
    assert make is not None
    scheduler, now_s, waiting, balance, least = make(), 0.0, 0, 0.0, 0.0
    only_s = alone_s(core, decodes)
    slo_s = max(core.costs.step_s, only_s)
    cap_s = core.costs.most_saved_s(only_s, core.costs.step_s)
    for tokens, comes in arrivals:
        waiting += tokens if comes else 0
        seen = view(decodes, *([waiting] if waiting else []))
        plan = scheduler.next_batch(seen, now_s)
        chunk = sum(plan.prefill_tokens.values())
        took_s = only_s + (core.costs.added_s(chunk, 0, decodes) if chunk else 0.0)
        if chunk:
            scheduler.on_step(seen, BatchPlan(plan.prefill_tokens), took_s)
        waiting, now_s = waiting - chunk, now_s + took_s
        balance = min(balance + slo_s - took_s, 0.0)
        least = min(least, balance)
    assert -least <= cap_s * 1.01 + 1e-9
