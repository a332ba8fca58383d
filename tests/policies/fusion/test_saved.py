"""Saved time: where it pays, what a step may spend of it, and that no answer pays more than the cap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.batching import FusionBatchScheduler
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.costs import LONG
from pdplugins.policies.fusion.plugin import build
from pdplugins.policies.fusion.saved import Saved
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import deployment, request
from pdplugins.types import BatchPlan, BatchView, QueuedPrefill

EXPERTS = deployment(
    load_profile("h200/qwen3-235b-a22b-fp8"), any_role=True, prefill_tp=8, decode_tp=8, gpu_budget=16, ttft_s=0.24,
    tpot_s=0.012,
)  # fmt: skip
"""A mixture of experts whose decodes leave little of the TPOT: small chunks are dear."""
DECODES = 12


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
    saved.after(view(DECODES), core.costs.step_s + has_s / 2)
    assert saved.before(view(DECODES), 0.1 + core.costs.step_s + has_s / 2, 1.0) == pytest.approx(has_s / 2)
    assert saved.before(view(0), 2.0, 1.0) == 0.0
    assert saved.before(view(DECODES), 2.0, 1.0) == 0.0


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
