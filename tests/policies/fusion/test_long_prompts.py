"""Prompts that are in time only on a worker without decodes get one, and decodes are kept away from them."""

from __future__ import annotations

import pytest

from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import SPARE, Core
from pdplugins.policies.fusion.costs import DONE_CELL
from pdplugins.policies.fusion.feedback import Feedback
from pdplugins.policies.fusion.lengths import EARLY, LATELY, LATELY_S, RECENT, MeanLengths
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import deployment, request, worker
from pdplugins.types import Placement, Role

LONG, TTFT_S = 60_000, 16.0
"""A prompt that takes 10 s on an idle pair of H100, and its objective."""
KV_TOKENS = 400_000
OSL = 700


def made(*, long_prompts: bool = True) -> Core:
    made_for = deployment(
        load_profile("h100/llama-3.1-70b-fp8"), prefill_tp=2, decode_tp=2, ttft_s=TTFT_S, tpot_s=0.077, any_role=True
    )
    return Core(FusionSettings(dwell_s=0.0, long_prompts=long_prompts), made_for)


@pytest.fixture
def shared() -> Core:
    return made()


def heard(shared: Core, rate: float, *long: int) -> float:
    """Let requests come at a rate, some with long prompts, and answers end. Return when the last one came."""
    for number in range(RECENT):
        tokens = long[number] if number < len(long) else 8000
        shared.lengths.began(request(str(number), tokens), number / rate)
        shared.lengths.ended(request(str(number)), OSL, 0.03, number / rate)
    return (RECENT - 1) / rate


def test_a_worker_only_prefills_where_a_prompt_is_late_beside_decodes(shared: Core) -> None:
    now_s = heard(shared, 0.7, LONG)
    assert shared.compose(4, 0, KV_TOKENS, now_s) == 1


def test_none_does_where_all_are_in_time_beside_decodes(shared: Core) -> None:
    now_s = heard(shared, 0.7)
    assert shared.compose(4, 0, KV_TOKENS, now_s) == 0


def test_switched_off_none_does_and_decodes_go_anywhere() -> None:
    shared = made(long_prompts=False)
    assert shared.compose(4, 0, KV_TOKENS, heard(shared, 0.7, LONG)) == 0
    workers = (
        worker("p0", Role.PREFILL),
        worker("d0", Role.DECODE, queued_tokens=float(LONG)),
        worker("d1", Role.DECODE, decode_requests=1.0, decode_tokens=3000.0),
    )
    bound = FusionRouter(shared).on_prefill_done(request("r", 1000), Placement("p0", None, 1000), workers, 0.0)
    assert bound.second == "d0"


def test_none_does_for_a_prompt_that_is_late_there_too(shared: Core) -> None:
    now_s = heard(shared, 0.7, 4 * LONG)
    assert shared.compose(4, 0, KV_TOKENS, now_s) == 0


def test_none_does_where_the_pool_needs_all_workers_for_both(shared: Core) -> None:
    capacity = shared.frontier(8100.0, OSL, KV_TOKENS).rate(1, 3)
    now_s = heard(shared, capacity / (0.95 * SPARE), LONG)
    assert shared.compose(4, 0, KV_TOKENS, now_s) == 0


def test_one_that_is_there_stays_while_the_pool_serves_the_load(shared: Core) -> None:
    capacity = shared.frontier(8100.0, OSL, KV_TOKENS).rate(1, 3)
    now_s = heard(shared, 0.97 * capacity / SPARE, LONG)
    assert shared.compose(4, 1, KV_TOKENS, now_s) == 1


def test_none_does_where_the_tpot_is_missed(shared: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = heard(shared, 0.7, LONG)
    monkeypatch.setattr(Feedback, "asks", -1)
    assert shared.compose(4, 0, KV_TOKENS, now_s) == 0


def test_a_decode_is_kept_away_from_a_long_prompt(shared: Core) -> None:
    """The worker that prefills it decodes nothing, so its step would be the shortest."""
    router, asked = FusionRouter(shared), request("r", 1000)
    busy = worker("d0", Role.DECODE, queued_tokens=float(LONG))
    decoding = worker("d1", Role.DECODE, decode_requests=1.0, decode_tokens=3000.0)
    placement = Placement("p0", None, 1000)
    for busy_there, wanted in ((busy, "d1"), (worker("d0", Role.DECODE), "d0")):
        workers = worker("p0", Role.PREFILL), busy_there, decoding
        assert router.on_prefill_done(asked, placement, workers, 0.0).second == wanted


def test_but_not_where_it_would_miss_its_tpot_elsewhere(shared: Core) -> None:
    router, limit_s = FusionRouter(shared), shared.costs.step_s
    most = next(count for count in range(1, 1000) if shared.costs.decode_s(count + 1, 8000.0) > 2 * limit_s)
    busy = worker("d0", Role.DECODE, queued_tokens=float(LONG))
    full = worker("d1", Role.DECODE, decode_requests=float(most), decode_tokens=8000.0 * most)
    workers = worker("p0", Role.PREFILL), busy, full
    assert router.on_prefill_done(request("r", 1000), Placement("p0", None, 1000), workers, 0.0).second == "d0"


def test_a_step_beside_decodes_has_fewer_tokens_of_a_prompt_of_which_much_is_done(shared: Core) -> None:
    rates = [shared.costs.pace(2, 40_000, done=done).rate for done in (0, 2 * DONE_CELL, 8 * DONE_CELL)]
    assert rates[0] > 1.2 * rates[1] > 1.2 * rates[2]


def test_the_rate_is_that_of_the_last_minute_or_of_the_last_requests() -> None:
    few, slow, fast = MeanLengths(200), MeanLengths(200), MeanLengths(200)
    for number in range(EARLY):
        few.began(request(str(number)), float(number))
    assert few.lately(EARLY)[0] == 0
    for number in range(200):
        slow.began(request(str(number), 1000 + number), float(number))
    rate, prompts = slow.lately(199.0)
    assert rate == pytest.approx(1.0, rel=0.05)
    assert prompts[-1] == 1199
    assert slow.lately(199.0 + LATELY_S)[0] == 0
    for number in range(2 * LATELY):
        fast.began(request(str(number)), number / 50)
    assert fast.lately(2 * LATELY / 50)[0] == pytest.approx(50, rel=0.05)
    assert len(fast.lately(0.0)[1]) == LATELY


def test_a_rate_beyond_all_that_is_remembered_of_a_second_is_known_and_a_burst_is_none() -> None:
    many, burst = MeanLengths(200), MeanLengths(200)
    for number in range(2 * LATELY):
        many.began(request(str(number)), number / 2000)
    assert many.lately(2 * LATELY / 2000)[0] == pytest.approx(2000, rel=0.05)
    for number in range(20):
        burst.began(request(str(number)), 0.001 * number)
    assert burst.lately(0.02)[0] == 20
