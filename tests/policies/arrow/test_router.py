"""Arrow's two decisions, its monitor and its overload rule, case by case as in Algorithms 1 to 4."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from pdplugins.errors import ConfigError
from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.testing import Worker
from pdplugins.types import Capabilities, ElasticRouter, Ending, Outcome, Request, Role
from tests.policies.arrow.cluster import Cluster

LONG = 9000  # tokens that prefill in 0.98 s; the TTFT SLO is 1 s

Make = Callable[..., Cluster]


# --- Algorithm 1 ---------------------------------------------------------------------------------------------------


def test_prefill_goes_to_the_instance_with_the_least_delay(cluster: Make) -> None:
    c = cluster(2, 1)
    assert [c.arrive(tokens).first for tokens in (5000, 1000, 1000, 1000)] == ["p0", "p1", "p1", "p1"]


def test_delay_counts_the_square_of_the_length(cluster: Make) -> None:
    """One prompt of 8,000 tokens takes longer than four of 2,000: tokens alone would not tell."""
    c = cluster(2, 1, ttft_share=9.0)
    for tokens, worker in ((8000, "p0"), (2000, "p1"), (2000, "p1"), (2000, "p1"), (1990, "p1"), (10, "p1")):
        assert c.arrive(tokens).first == worker


def test_d_to_p_is_second_choice_while_p_meets_the_slo(cluster: Make) -> None:
    c = cluster(1, 2)
    c.decoding("d1", 1, 100)
    c.decoding("d2", 1, 200)
    c.arrive(LONG)
    assert c.arrive(2000).first == "d1"
    assert c.pool("d1") == "D->P"
    c.decoding("d1", 2, 2100)  # its decode, and the prompt
    c.clock_s = 0.9
    assert c.arrive(5000).first == "p0", "P is served before D->P, although d1 would be free first"


def test_d_to_p_takes_what_p_cannot(cluster: Make) -> None:
    c = cluster(1, 3)
    for worker in ("d1", "d2", "d3"):
        c.decoding(worker, 1, 100)
    c.arrive(LONG)
    c.arrive(2000)
    assert (c.arrive(2000).first, c.router.pools) == ("d1", (2, 2))


def test_a_prompt_that_misses_its_slo_anywhere_moves_nothing(cluster: Make) -> None:
    """12,000 tokens take 1.3 s alone, and the TTFT SLO is 1 s: an idle instance would not help it."""
    c = cluster(1, 2)
    for _ in range(3):
        placed = c.arrive(12_000)
        assert (placed.first, placed.reason) == ("p0", "least delay in P")
    assert c.router.pools == (1, 2)
    assert c.arrive(10).first != "p0", "a short one behind them would be late, and another instance helps it"


@pytest.mark.parametrize(("tokens", "waits_s"), [(10, 0.499), (4900, 0.243), (9000, 0.009)])
def test_half_of_what_prefill_leaves_of_the_slo_may_pass_in_the_queue(
    cluster: Make, tokens: int, waits_s: float
) -> None:
    """`ttft_share` of 0.5, whatever the length of the prompt."""
    for delay_s, moved in ((waits_s - 0.002, False), (waits_s + 0.002, True)):
        c = cluster(1, 2, ttft_share=0.5)
        c.arrive(LONG)
        c.clock_s = c.router._instances["p0"].free_at_s - delay_s
        assert (c.arrive(tokens).first != "p0") == moved


def test_decode_keeps_its_instances_when_it_is_loaded(cluster: Make) -> None:
    """The overload rule: decode wins. The request waits where the delay is least."""
    c = cluster(1, 2)
    c.decoding("d1", 10, 210_000)
    c.decoding("d2", 10, 210_000)
    c.arrive(LONG)
    placed = c.arrive(LONG)
    assert (placed.first, placed.reason) == ("p0", "no instance meets the TTFT SLO")


def test_decode_keeps_its_instances_when_tokens_are_slow(cluster: Make) -> None:
    c = cluster(1, 2, slow_s=1e9)
    c.load("d1").recent_tbt_s = 0.2
    c.arrive(LONG)
    assert c.arrive(LONG).first == "p0"


def test_the_last_decode_instance_stays(cluster: Make) -> None:
    c = cluster(1, 1)
    assert [c.arrive(LONG).first for _ in range(3)] == ["p0"] * 3


def test_history_of_a_session_takes_no_time(cluster: Make) -> None:
    c = cluster(1, 2)
    for index in range(3):
        round_ = Request(str(index), 0.0, 9000, history_tokens=8900)
        assert c.router.on_arrival(round_, c.workers, 0.0).first == "p0"


# --- Algorithm 2 ---------------------------------------------------------------------------------------------------


def test_second_stays_open_until_prefill_is_done(cluster: Make) -> None:
    c = cluster(1, 1)
    placed = c.arrive(1000)
    assert (placed.second, placed.split) == (None, 1000)
    assert c.prefilled("0").second == "d1"


def test_decode_goes_where_the_fewest_tokens_run(cluster: Make) -> None:
    c = cluster(1, 3)
    for worker, tokens in (("d1", 3000), ("d2", 1000), ("d3", 2000)):
        c.decoding(worker, 9, tokens)
    c.arrive(100)
    assert c.prefilled("0").second == "d2"


def test_requests_whose_kv_cache_is_on_its_way_count(cluster: Make) -> None:
    """A host's load shows a request when it decodes; until then the router remembers where it sent it."""
    c = cluster(1, 2)
    for _ in range(4):
        c.arrive(500)
    assert [c.prefilled(str(n)).second for n in range(4)] == ["d1", "d2", "d1", "d2"]
    d1 = c.router._instances["d1"]
    assert (d1.decodes, d1.running_tokens) == (2, 1000)
    c.decoding("d1", 1, 510)
    c.arrive(10)
    assert (d1.decodes, d1.running_tokens) == (2, 1010), "the report has one of them; the other one still waits"
    c.decoding("d1", 2, 1100)
    c.arrive(10)
    assert d1.running_tokens == 1100
    c.router.on_ended(c.decodes["0"], Outcome(Ending.FAILED, 9))
    for name in "123":
        c.finished(name)
    c.decoding("d1", 0, 0)
    c.arrive(10)
    assert (d1.decodes, d1.running_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("requests", "tokens", "tbt_s"), [(9, 400_000, None), (256, 100, None), (9, 2000, None), (9, 900, 0.06)], ids=str
)
def test_an_instance_that_would_miss_the_tpot_slo_is_passed_over_after_a_while(
    cluster: Make, requests: int, tokens: int, tbt_s: float | None
) -> None:
    """A full KV cache or batch, more than Max Running Tokens, or slow ones.

    Late tokens can be made up for (Insight 4), so all of that has to last.
    """
    c = cluster(2, 1, busy_load=9.0, slow_s=1.0, max_running_tokens=1000 if tokens < 400_000 else 10**6)
    for now_s, second, pools in ((0.0, "d2", (2, 1)), (0.8, "d2", (2, 1)), (1.1, "p0", (1, 2))):
        c.clock_s = now_s
        c.decoding("d2", requests, tokens)
        c.load("d2").recent_tbt_s = tbt_s
        c.router._slow_since_s = None  # the monitor would move an instance for slow tokens, too
        c.arrive(100)
        assert (c.prefilled(str(c.count - 1)).second, c.router.pools) == (second, pools)


def test_one_request_that_fits_ends_the_while(cluster: Make) -> None:
    c = cluster(2, 1, busy_load=9.0, slow_s=1.0, max_running_tokens=1000)
    for step in range(10):
        c.clock_s = 0.6 * step
        c.decoding("d2", 9, 900 if step % 2 else 2000)
        c.arrive(100)
        assert c.prefilled(str(step)).second == "d2"


def test_one_long_prompt_may_exceed_max_running_tokens(cluster: Make) -> None:
    """Algorithm 2 compares what runs, without the request itself. Only the KV cache has to hold both."""
    c = cluster(2, 1, busy_load=9.0, max_running_tokens=1000)
    c.decoding("d2", 1, 999)
    c.arrive(5000)
    assert c.prefilled("0").reason == "fewest running tokens in D"


def test_prefill_is_not_asked_whether_it_can_spare_an_instance(cluster: Make) -> None:
    """The other half of the overload rule: Algorithm 4 has no check of the prefill load."""
    c = cluster(2, 1, busy_load=9.0, slow_s=0.0)
    for _ in range(20):
        c.arrive(LONG)
    c.decoding("d2", 256, 400_000)
    c.prefilled("0")
    assert c.router.pools == (1, 2)


def test_with_nothing_left_to_move_the_fewest_tokens_decide(cluster: Make) -> None:
    c = cluster(1, 2)
    c.decoding("d1", 256, 400_000)
    c.decoding("d2", 256, 390_000)
    c.arrive(500)
    placed = c.prefilled("0")
    assert (placed.second, placed.reason) == ("d2", "no instance has free capacity inside the TPOT SLO")


# --- the monitor ---------------------------------------------------------------------------------------------------


def test_idle_prefill_helps_busy_decode(cluster: Make) -> None:
    c = cluster(3, 1, idle_s=1.0)
    c.decoding("d3", 200, 350_000)
    c.clock_s = 0.9
    c.arrive(100)
    assert c.router.pools[0] == 3, "it is idle for less than a second"
    c.clock_s = 1.0
    c.arrive(100)
    assert c.router.pools[0] == 2, "one at a time"
    c.arrive(100)
    assert c.router.pools[0] == 2, "the help halves the load"


def test_prefill_that_pauses_between_prompts_is_not_idle(cluster: Make) -> None:
    c = cluster(2, 1, idle_s=1.0)
    c.decoding("d2", 200, 350_000)
    for step in range(20):
        c.clock_s = 0.5 * step
        c.arrive(100)
        c.arrive(100)
        c.clock_s += 0.01
        for name in list(c.open):
            c.prefilled(name)
    assert c.router.pools == (2, 1)


def test_slow_tokens_move_an_instance_after_a_while(cluster: Make) -> None:
    c = cluster(3, 1)
    c.load("d3").recent_tbt_s = 0.2
    for now_s, pools in ((0.0, (3, 1)), (0.5, (3, 1)), (1.1, (2, 2)), (1.5, (2, 2)), (2.2, (1, 3)), (9.0, (1, 3))):
        c.clock_s = now_s
        c.arrive(10)
        assert c.router.pools == pools


def test_one_slow_step_moves_nothing(cluster: Make) -> None:
    """Insight 4: decode tolerates a spike."""
    c = cluster(3, 1)
    for now_s in range(20):
        c.clock_s = now_s / 2
        c.load("d3").recent_tbt_s = 0.2 if now_s % 2 else 0.01
        c.arrive(10)
    assert c.router.pools == (3, 1)


def test_a_prediction_that_has_passed_is_corrected(cluster: Make) -> None:
    """A worker that is slower than predicted, and says that prompts still wait, is not taken for free."""
    c = cluster(2, 1)
    for _ in range(4):
        c.arrive(4000)
    c.load("p0").queued_tokens = 4000
    c.clock_s = 5.0
    assert c.arrive(4000).first == "p1"
    assert c.router._instances["p0"].free_at_s > 5.0


@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.CANCELLED, Ending.REFUSED])
def test_a_request_that_ends_before_its_prefill_is_done_delays_nobody(cluster: Make, ending: Ending) -> None:
    c = cluster(2, 1)
    for tokens in (4000, 4000, 2000):
        c.arrive(tokens)
    assert [c.open[name][1].first for name in "012"] == ["p0", "p1", "p0"]
    alone_s = c.router._instances["p0"].free_at_s
    c.end("0", ending)
    c.end("0", ending)
    assert c.router._instances["p0"].free_at_s < alone_s
    assert c.arrive(4000).first == "p0", "its queue is the shorter one now"
    c.end("2", ending)
    c.end("3", ending)
    assert c.router._instances["p0"].prefill_delay_s(c.clock_s) == 0.0


def test_an_answer_of_one_token_leaves_the_queue_with_the_next_prompt(cluster: Make) -> None:
    c = cluster(1, 1)
    c.arrive(4000)
    c.arrive(2000)
    c.end("0", Ending.FINISHED)
    c.clock_s = 0.5
    c.prefilled("1")
    assert c.router._instances["p0"].prefill_delay_s(c.clock_s) == 0.0
    c.finished("1")
    assert not c.router._at


def test_a_request_that_decodes_leaves_the_queue_once(cluster: Make) -> None:
    c = cluster(1, 1)
    c.arrive(4000)
    c.arrive(4000)
    request = c.open["0"][0]
    c.prefilled("0")
    before_s = c.router._instances["p0"].free_at_s
    c.router.on_ended(request, Outcome(Ending.FINISHED, 7))
    assert c.router._instances["p0"].free_at_s == before_s


def test_a_request_that_is_placed_anew_waits_in_one_queue(cluster: Make) -> None:
    c = cluster(2, 1)
    request = Request("0", 0.0, 4000)
    homes = [c.router.on_arrival(request, c.workers, 0.0).first for _ in range(3)]
    assert homes == ["p0"] * 3
    assert len(c.router._instances["p0"].prefills) == 1
    assert not c.router._instances["p1"].prefills


def test_what_is_late_but_does_not_wait_delays_nobody(cluster: Make) -> None:
    c = cluster(1, 1)
    for _ in range(1000):
        c.arrive(100)
        c.clock_s += 1.0
    assert len(c.router._instances["p0"].prefills) <= 1


def test_a_prompt_beyond_any_kv_cache_holds_nobody_up(cluster: Make) -> None:
    c = cluster(1, 1)
    c.arrive(400_000)
    assert c.router._instances["p0"].prefill_delay_s(0.0) == 0.0


def test_an_absurd_load_is_forgotten_when_it_is_over(cluster: Make) -> None:
    c = cluster(1, 3)
    for tokens, tbt_s in ((1e308, 1e308), (1e308, 1e308), (-1e308, -1.0), (1000.0, 0.01)):
        for worker in ("d1", "d2"):
            c.decoding(worker, 2, tokens)  # type: ignore[arg-type]
            c.load(worker).recent_tbt_s = tbt_s
        c.clock_s += 0.1
        c.arrive(10)
    load = c.router._pools.load
    assert load.interval_s == pytest.approx(0.01, rel=1e-3)
    limits = c.router._instances["d1"].limits
    assert load.share == pytest.approx(2 / 3 * limits.speed(1000) / limits.speed(400_000), rel=1e-6)


def test_minimal_load_moves_nothing(cluster: Make) -> None:
    c = cluster(2, 2, elastic=False)
    c.decoding("d2", 256, 400_000)
    c.load("d3").recent_tbt_s = 1.0
    for index in range(50):
        c.clock_s += 0.1
        c.arrive(LONG)
        c.prefilled(str(index))
    assert c.router.pools == (2, 2)


# --- workers that come and go --------------------------------------------------------------------------------------


def test_one_worker_does_both_phases(cluster: Make) -> None:
    for prefill, decode in ((1, 0), (0, 1)):
        c = cluster(prefill, decode)
        worker = c.workers[0].id
        assert c.arrive(LONG).first == worker
        assert c.prefilled("0").second == worker


def test_no_worker_is_an_error_that_says_what_to_do(cluster: Make) -> None:
    c = cluster(1, 1)
    c.workers = ()
    with pytest.raises(ConfigError, match="start at least one"):
        c.arrive(1)


def test_a_phase_without_workers_gets_one(cluster: Make) -> None:
    assert_both = ((3, 0), (0, 3))
    for prefill, decode in assert_both:
        c = cluster(prefill, decode)
        c.arrive(10)
        assert min(c.router.pools) == 1


def test_a_worker_that_dies_takes_its_queue_along(cluster: Make) -> None:
    c = cluster(2, 2)
    c.arrive(LONG)
    c.arrive(100)
    c.workers = c.workers[1:]
    assert c.arrive(100).first == "p1"
    c.router.on_prefill_done(*c.open["0"], c.workers, 0.0)
    assert sum(c.router.pools) == 3


def test_a_new_worker_is_used(cluster: Make) -> None:
    c = cluster(1, 1)
    c.arrive(5000)
    c.workers = (*c.workers, Worker("new", Role.PREFILL))
    assert c.arrive(5000).first == "new"


# --- what hosts see ------------------------------------------------------------------------------------------------


def test_hosts_see_pools_and_flips(cluster: Make) -> None:
    c = cluster(1, 3)
    assert isinstance(c.router, ElasticRouter)
    c.arrive(LONG)
    c.arrive(LONG)
    assert c.router.pools == (2, 2)
    signals = c.router.signals
    assert (signals["pool_p"], signals["pool_d"], signals["flips_to_prefill"]) == (2, 2, 1)
    assert all(math.isfinite(value) for value in signals.values())


def test_a_host_is_told_once_of_each_label_that_changes(cluster: Make) -> None:
    c = cluster(1, 3)
    assert c.router.take_role_moves() == ()
    c.arrive(LONG)
    moved = c.arrive(LONG).first
    assert [(move.worker, move.role) for move in c.router.take_role_moves()] == [(moved, Role.PREFILL)]
    assert c.router.take_role_moves() == ()


def test_the_labels_that_no_host_takes_are_forgotten_with_their_workers(cluster: Make) -> None:
    c = cluster(1, 3)
    c.arrive(LONG)
    moved = c.arrive(LONG).first
    c.workers = tuple(worker for worker in c.workers if worker.id != moved)
    c.arrive(10)
    assert moved not in [move.worker for move in c.router.take_role_moves()]


def test_thresholds_without_a_gap_are_refused() -> None:
    with pytest.raises(ValidationError, match="back and forth"):
        ArrowSettings(low_load=0.7, busy_load=0.7)


# --- stock servers -------------------------------------------------------------------------------------------------


def test_a_prompt_that_was_bound_early_stays_in_the_queue_until_it_is_computed(cluster: Make) -> None:
    c = cluster(2, 1)
    assert c.arrive(LONG).first == "p0"
    request, placement = c.open.pop("0")
    assert c.router.bind_early(request, placement, c.workers, c.clock_s).second == "d2"
    assert [c.arrive(4000).first, c.arrive(4000).first] == ["p1", "p1"]
    c.router.on_prefilled(request, c.clock_s)
    assert c.arrive(4000).first == "p0"


def test_a_prompt_that_is_computed_early_takes_out_no_other_one(cluster: Make) -> None:
    """The one before it may wait for its decode server, which has no room."""
    c = cluster(1, 1)
    bound = []
    for _ in range(2):
        c.arrive(1000)
        request, placement = c.open.popitem()[1]
        c.router.bind_early(request, placement, c.workers, c.clock_s)
        bound.append(request)
    c.router.on_prefilled(bound[1], c.clock_s)
    assert [*c.router._instances["p0"].prefills] == ["0"]


@pytest.mark.parametrize("ending", Ending)
def test_a_request_that_was_bound_early_leaves_nothing_behind(cluster: Make, ending: Ending) -> None:
    c = cluster(1, 1)
    for _ in range(3):
        c.arrive(1000)
        request, placement = c.open.popitem()[1]
        c.router.bind_early(request, placement, c.workers, c.clock_s)
        c.router.on_ended(request, Outcome(ending))
        c.router.on_prefilled(request, c.clock_s)
    assert not c.router._bound
    assert not c.router._at
    for instance in c.router._instances.values():
        assert (instance.prefills, instance.backlog_s, instance.decoding) == ({}, 0.0, {})


def test_servers_of_one_phase_stay_in_their_pools(cluster: Make) -> None:
    """What would make them move has no effect; a dual-role server among them moves instead."""
    for dual, pools in (("", (1, 3)), ("d2", (2, 2))):
        c = cluster(1, 3)
        for worker in c.workers:
            if worker.id != dual:
                worker.capabilities = Capabilities(frozenset({worker.role}), alone=False, splits=False)
        c.arrive(LONG)
        assert c.arrive(2000).first == (dual or "p0")
        assert c.router.pools == pools
