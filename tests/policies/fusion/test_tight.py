"""Steps are shorter where decodes fill the KV cache: each of them leaves sooner, and others get its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from pdplugins.policies.fusion.batching import TURN_TOKENS, FusionBatchScheduler
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import LEAST_STEP, TIGHT, Core
from pdplugins.policies.fusion.lengths import RECENT
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import deployment, request
from pdplugins.types import BatchView, QueuedPrefill

KV_TOKENS, WORKERS = 258_000, 4
AGENT = 450, 58, 1250
"""New prompt tokens, output and history of a round of an agent: KV cache is what is short."""


@pytest.fixture
def core() -> Callable[..., Core]:
    def of(isl: int, osl: int, history: int, *, present: int = 0, tpot_s: float = 0.15, **settings: Any) -> Core:
        made_for = deployment(
            load_profile("h100/llama-3.1-70b-fp8"), prefill_tp=2, decode_tp=2, ttft_s=1.8, tpot_s=tpot_s, any_role=True
        )
        shared = Core(FusionSettings(dwell_s=0.0, **settings), made_for)
        for number in range(RECENT):
            asked = request(str(number), isl + history, history_tokens=history)
            shared.lengths.began(asked)
            shared.lengths.ended(asked, osl)
        shared.compose(WORKERS, present, KV_TOKENS, 0.0)
        return shared

    return of


def step_s(shared: Core, decodes: int, context: int) -> tuple[float, int]:
    """Return the predicted seconds of the step that is composed beside these decodes, and its prompt tokens."""
    queue = tuple(QueuedPrefill(request(str(n), 1000), 1000, 0.0, 0) for n in range(8))
    plan = FusionBatchScheduler(shared).next_batch(BatchView(queue, decodes, decodes * context), 0.0)
    tokens = sum(plan.prefill_tokens.values())
    return shared.costs.decode_s(decodes, context) + shared.costs.added_s(tokens, 0, decodes), tokens


def test_the_step_is_that_of_the_programme_where_decodes_fill_the_cache(core: Callable[..., Core]) -> None:
    shared = core(*AGENT)
    wanted_s = shared.frontier(450.0, 58 * 1.05, KV_TOKENS, history=1250.0).step_s(WORKERS)
    assert wanted_s < 0.85 * shared.costs.step_s
    assert step_s(shared, 118, 1750)[0] == pytest.approx(wanted_s, rel=0.05)


def test_it_is_as_long_as_the_tpot_allows_where_there_is_room(core: Callable[..., Core]) -> None:
    shared = core(*AGENT)
    edge = TIGHT * shared.settings.kv_share * KV_TOKENS
    assert shared.limit_s(int(edge) - 1) == math.inf > shared.limit_s(int(edge) + 1)
    assert step_s(shared, 60, 1750)[0] == pytest.approx(shared.costs.step_s, rel=0.05)


def test_it_stays_where_prefill_is_what_is_short(core: Callable[..., Core]) -> None:
    """With prompts this long, all that a step has within the TPOT is needed."""
    shared = core(1500, 58, 0)
    assert shared.wanted == 0
    assert shared.limit_s(KV_TOKENS) >= 0.98 * shared.costs.step_s


def test_it_stays_beside_workers_that_only_prefill(core: Callable[..., Core]) -> None:
    shared = core(450, 58, 1250, present=1, tpot_s=0.038)
    assert shared.wanted
    assert shared.limit_s(KV_TOKENS) == math.inf


def test_it_stays_where_it_is_switched_off(core: Callable[..., Core]) -> None:
    assert core(*AGENT, short_steps=False).limit_s(KV_TOKENS) == math.inf


def test_under_a_budget_of_watts_the_step_is_that_of_the_caps(core: Callable[..., Core]) -> None:
    """Decodes take longer under a cap, and so does the step that serves the most."""
    free, capped = core(*AGENT), core(*AGENT, power_budget_w=8 * 450.0)
    assert capped.caps is not None
    assert capped.limit_s(KV_TOKENS) > 1.01 * free.limit_s(KV_TOKENS)


def test_a_step_has_a_turn_of_the_oldest_prompt_however_short_it_is(core: Callable[..., Core]) -> None:
    """Where decodes alone take longer than the programme's step, prompts would wait for one of them to end."""
    shared = core(20, 400, 2000)
    assert shared.limit_s(KV_TOKENS) == pytest.approx(LEAST_STEP * shared.costs.step_s)
    decodes = next(count for count in range(1, 2000) if shared.costs.decode_s(count, 1000) > shared.limit_s(KV_TOKENS))
    assert step_s(shared, decodes, 1000)[1] >= TURN_TOKENS


def test_before_the_first_solution_nothing_is_limited() -> None:
    made_for = deployment(load_profile("h100/llama-3.1-70b-fp8"), prefill_tp=2, decode_tp=2, any_role=True)
    assert Core(FusionSettings(), made_for).limit_s(10**9) == math.inf
