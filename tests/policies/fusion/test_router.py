"""The router: the soonest first token, the holder of the cache, places to decode, and roles."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time_ns

import pytest

from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.residents import MOST_KNOWN, Residents
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.profiling.decisions import BAR_LOOP_US, loop_ns
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import Worker, deployment, fleet, request, worker
from pdplugins.types import Capabilities, Ending, Outcome, Request, Role, Terms

Cores = Callable[..., Core]
FIXED = {"composition": False}


def place(router: FusionRouter, workers: tuple[Worker, ...], tokens: int = 1000, **more: object) -> tuple[str, str]:
    """Return where a request prefills and decodes."""
    asked = request("r", tokens, **more)
    placement = router.on_arrival(asked, workers, 0.0)
    if placement.second is None:
        placement = router.on_prefill_done(asked, placement, workers, 0.0)
    assert placement.second is not None
    return placement.first, placement.second


def test_an_idle_pool_serves_where_no_transfer_is_needed(core: Cores) -> None:
    first, second = place(FusionRouter(core(**FIXED)), fleet(1, 1))
    assert first == second == "d0"


def test_a_worker_that_only_prefills_is_filled_first_while_that_is_in_time(core: Cores) -> None:
    """Prefill beside decodes costs places to decode. So it goes away though its first token comes later."""
    busy, router = worker("d0", decode_requests=8.0, decode_tokens=8000.0), FusionRouter(core(**FIXED))
    assert place(router, (worker("p0"), busy)) == ("p0", "d0")
    assert place(router, (worker("p0", queued_tokens=3000.0), busy)) == ("d0", "d0")


def test_a_decode_goes_where_its_step_is_shortest(core: Cores) -> None:
    """Not where the least context is, if many requests share that."""
    many = worker("d0", decode_requests=2000.0, decode_tokens=10_000.0)
    few = worker("d1", decode_requests=10.0, decode_tokens=12_000.0)
    asked, router = request("r", 100), FusionRouter(core(**FIXED))
    placement = router.on_arrival(asked, (worker("p0"), many, few), 0.0)
    assert router.on_prefill_done(asked, placement, (worker("p0"), many, few), 1.0).second == "d1"


def test_prefill_goes_away_where_decodes_leave_too_little_of_the_step(core: Cores) -> None:
    crowded = worker("d0", decode_requests=200.0, decode_tokens=300_000.0)
    assert place(FusionRouter(core(**FIXED)), (worker("p0"), crowded), 4000) == ("p0", "d0")


def test_a_long_prompt_counts_what_attention_costs() -> None:
    """By its tokens it would be done sooner beside a few decodes; its attention takes as long again as they do."""
    core = Core(FusionSettings(composition=False), deployment(load_profile("a100/qwen2.5-14b"), any_role=True))
    busy, idle = worker("d0", decode_requests=2.0, decode_tokens=2000.0), worker("p0", queued_tokens=9000.0)
    assert place(FusionRouter(core), (idle, busy), 4000)[0] == "d0"
    assert place(FusionRouter(core), (idle, busy), 60_000)[0] == "p0"


def test_a_queue_is_time(core: Cores) -> None:
    waits = worker("d0", queued_tokens=20_000.0)
    assert place(FusionRouter(core(**FIXED)), (waits, worker("d1"))) == ("d1", "d1")


def test_the_holder_of_a_session_saves_its_history(core: Cores) -> None:
    workers = (worker("d0"), worker("d1", queued_tokens=3000.0))
    router = FusionRouter(core(**FIXED))
    assert place(router, workers, 8000)[0] == "d0"
    assert place(router, workers, 8000, history_tokens=7000, bound_worker="d1")[0] == "d1"


def test_a_cached_prefix_is_time_saved(core: Cores) -> None:
    workers = (worker("d0"), worker("d1", queued_tokens=1000.0, cached_blocks=frozenset(range(8))))
    router = FusionRouter(core(**FIXED))
    assert place(router, workers, 4096, blocks=tuple(range(8)))[0] == "d1"
    assert place(router, workers, 4096, blocks=tuple(range(50, 58)))[0] == "d0"


def test_the_session_holder_of_a_large_pool_is_always_looked_at(core: Cores) -> None:
    workers = tuple(worker(f"d{index}", queued_tokens=1000.0) for index in range(200))
    router = FusionRouter(core(**FIXED, choices=4))
    assert place(router, workers, 8000, history_tokens=7900, bound_worker="d150")[0] == "d150"


def test_every_worker_of_a_large_pool_gets_its_turn(core: Cores) -> None:
    workers = tuple(worker(f"d{index}") for index in range(50))
    router = FusionRouter(core(**FIXED, choices=4))
    assert len({place(router, workers)[0] for _ in range(60)}) >= 12


def test_a_worker_without_kv_capacity_is_passed_over(core: Cores) -> None:
    workers = (worker("d0", free_kv_tokens=500), worker("d1", free_kv_tokens=50_000, queued_tokens=9000.0))
    assert place(FusionRouter(core(**FIXED)), workers) == ("d1", "d1")


def test_a_prompt_is_split_where_one_kv_cache_does_not_hold_it(core: Cores) -> None:
    """The prefill worker computes what it holds, and the larger worker goes on from there."""
    busy = {"decode_requests": 100.0, "decode_tokens": 100_000.0, "queued_tokens": 50_000.0}
    small, large = worker("p0", kv_capacity_tokens=10_000), worker("d0", kv_capacity_tokens=500_000, **busy)
    router = FusionRouter(core(**FIXED))
    for tokens, split, second in ((30_000, 8500, "d0"), (5000, 5000, None)):
        placed = router.on_arrival(request("r", tokens), (small, large), 0.0)
        assert (placed.first, placed.second, placed.split) == ("p0", second, split)
    whole = worker("d0", kv_capacity_tokens=500_000, capabilities=Capabilities(splits=False), **busy)
    assert router.on_arrival(request("r", 30_000), (small, whole), 0.0).split == 30_000


def test_slow_decodes_are_not_slowed_further(core: Cores) -> None:
    """Of two workers the one whose decodes keep their TPOT gets the prompt, though it has more to do."""
    slow, good = worker("d0", recent_tbt_s=0.2, queued_tokens=500.0), worker("d1", queued_tokens=1000.0)
    router = FusionRouter(core(**FIXED))
    assert place(router, (slow, good))[0] == "d1"
    assert place(router, (worker("d0", queued_tokens=500.0), good))[0] == "d0"


def test_a_placement_says_what_else_there_was(core: Cores) -> None:
    router, workers = FusionRouter(core(**FIXED)), (worker("p0", queued_tokens=9000.0), worker("d0"))
    reason = router.on_arrival(request("r", 1000), workers, 0.0).reason
    assert "local, " in reason
    assert reason.endswith("by way of p0")


def test_a_worker_that_cannot_serve_alone_only_decodes(core: Cores) -> None:
    alone = Capabilities(frozenset({Role.DECODE}), alone=False)
    workers = (worker("p0", queued_tokens=9000.0), worker("d0", capabilities=alone))
    assert place(FusionRouter(core(**FIXED)), workers) == ("p0", "d0")


def test_decode_is_bound_when_prefill_ends(core: Cores) -> None:
    """To the worker with least context by then."""
    crowded = {"decode_requests": 100.0, "queued_tokens": 50_000.0}
    workers = (worker("p0"), *(worker(f"d{n}", decode_tokens=100_000.0 - n, **crowded) for n in range(3)))
    router = FusionRouter(core(**FIXED))
    asked = request("r", 1000)
    placement = router.on_arrival(asked, workers, 0.0)
    assert (placement.first, placement.second) == ("p0", None)
    assert router.on_prefill_done(asked, placement, workers, 1.0).second == "d2"


def test_a_prefill_server_that_must_know_the_decode_server_is_told_at_once(core: Cores) -> None:
    """A stock one: it cannot serve alone."""
    stock = Capabilities(frozenset({Role.PREFILL}), alone=False, splits=False)
    crowded = {"decode_requests": 100.0, "queued_tokens": 50_000.0}
    workers = (worker("p0", capabilities=stock), *(worker(f"d{n}", decode_tokens=9.0 - n, **crowded) for n in range(3)))
    placement = FusionRouter(core(**FIXED)).on_arrival(request("r", 1000), workers, 0.0)
    assert (placement.first, placement.second) == ("p0", "d2")


def arrivals(router: FusionRouter, workers: tuple[Worker, ...], tokens: int, output: int, end_s: float) -> None:
    for tick in range(int(10 * end_s)):
        asked = request(str(tick), tokens)
        router.on_arrival(asked, workers, tick / 10)
        router.on_ended(asked, Outcome(Ending.FINISHED, output))
        if not tick % 10:
            router.plan_ahead(workers, tick / 10)


def test_workers_become_prefill_only_when_prompts_are_long(core: Cores) -> None:
    router, workers = FusionRouter(core(prior_tokens=10)), fleet(0, 8)
    arrivals(router, workers, 20_000, 10, 3.0)
    moves = router.take_role_moves()
    assert len(moves) >= 4
    assert {move.role for move in moves} == {Role.PREFILL}
    assert router.take_role_moves() == ()
    assert router.signals["prefill_only"] == len(moves)


def test_and_none_when_answers_are_long(core: Cores) -> None:
    router, workers = FusionRouter(core(prior_tokens=2000)), fleet(4, 4)
    arrivals(router, workers, 300, 2000, 3.0)
    moves = router.take_role_moves()
    assert {move.worker for move in moves} == {"p0", "p1", "p2", "p3"}
    assert {move.role for move in moves} == {Role.DECODE}


def test_only_workers_that_can_change_their_role_are_asked_to(core: Cores) -> None:
    """Stock servers have one role for life. A fleet may have dual-role servers beside them."""
    decodes = Capabilities(frozenset({Role.DECODE}), splits=False)
    prefills = Capabilities(frozenset({Role.PREFILL}), alone=False, splits=False)
    stock = tuple(worker(f"d{index}", capabilities=decodes) for index in range(6))
    router = FusionRouter(core(prior_tokens=10))
    arrivals(router, (*stock, worker("d6"), worker("d7")), 20_000, 10, 3.0)
    assert {move.worker for move in router.take_role_moves()} == {"d6", "d7"}
    stock = tuple(worker(f"p{index}", capabilities=prefills) for index in range(3))
    router = FusionRouter(core(prior_tokens=2000))
    arrivals(router, (*stock, worker("p3"), *fleet(0, 4)), 300, 2000, 3.0)
    assert [move.worker for move in router.take_role_moves()] == ["p3"]


def test_a_kv_capacity_that_is_not_known_is_the_usual_one(core: Cores) -> None:
    """The gateway knows it from the first load report on; until then it says 0."""
    served = []
    for capacity in (0, 200_000):
        router = FusionRouter(core(prior_tokens=2000))
        workers = (*fleet(0, 7), worker("d7", kv_capacity_tokens=capacity))
        arrivals(router, workers, 300, 2000, 3.0)
        served.append(router.signals["capacity_rate"])
    assert served[0] == served[1] > 0


def test_a_composition_stays_for_its_dwell_time(core: Cores) -> None:
    shared = core(prior_tokens=10, dwell_s=60.0)
    router = FusionRouter(shared)
    arrivals(router, fleet(0, 8), 20_000, 10, 3.0)
    wanted = shared.wanted
    assert wanted
    shared.lengths.isl = 100.0
    shared.lengths.osl = 50_000.0
    workers = fleet(wanted, 8 - wanted)
    for now_s, expected in ((30.0, wanted), (60.0, wanted), (61.0, 0)):
        router.plan_ahead(workers, now_s)
        assert shared.wanted == expected


def test_no_request_waits_for_the_programme(core: Cores) -> None:
    """It is solved between requests, in less than 50 ms where the fixed loop of the benchmark takes 30 us."""
    router, workers = FusionRouter(core(prior_tokens=10)), fleet(0, 64)
    for tick in range(50):
        asked = request(str(tick), 20_000)
        router.on_arrival(asked, workers, tick)
        router.on_ended(asked, Outcome(Ending.FINISHED, 10))
    assert router.take_role_moves() == ()
    took = []
    for now_s in range(100, 400, 100):
        began = thread_time_ns()
        router.plan_ahead(workers, now_s)
        took.append((thread_time_ns() - began) / loop_ns())
    assert router.take_role_moves() != ()
    assert min(took) < 50_000 / BAR_LOOP_US


@pytest.mark.parametrize("settings", [{"composition": False}, {"scale": True}])
def test_roles_stay_where_another_part_has_them(core: Cores, settings: dict[str, bool]) -> None:
    router = FusionRouter(core(prior_tokens=10, **settings))
    arrivals(router, fleet(0, 8), 20_000, 10, 3.0)
    assert router.take_role_moves() == ()


def strict(name: str) -> Request:
    return request(name, 1000, terms=Terms(tpot_s=0.03))


def test_a_prompt_goes_where_it_disturbs_no_request_with_a_strict_tpot(core: Cores) -> None:
    """On d0 a request decodes that asks for 30 ms, which leaves prompts little of each step. d1 has more to do."""
    loads = {"decode_requests": 5.0, "decode_tokens": 5000.0, "recent_tbt_s": 0.05}
    workers = worker("d0", **loads), worker("d1", **loads, queued_tokens=500.0)
    router, asked = FusionRouter(core(**FIXED)), strict("strict")
    assert place(router, workers) == ("d0", "d0")
    placement = router.on_arrival(asked, workers, 0.0)
    assert router.on_prefill_done(asked, placement, workers, 0.0).second == "d0"
    assert place(router, workers) == ("d1", "d1")
    router.on_ended(asked, Outcome(Ending.FINISHED, 5))
    assert place(router, workers) == ("d0", "d0")


def test_a_request_counts_where_its_decode_is_bound(core: Cores) -> None:
    busy = {"decode_requests": 100.0, "decode_tokens": 100_000.0, "queued_tokens": 50_000.0}
    workers = worker("p0"), worker("d0", **busy)
    shared, asked = core(**FIXED), strict("strict")
    router = FusionRouter(shared)
    placement = router.on_arrival(asked, workers, 0.0)
    assert (placement.second, list(shared.residents.on("d0"))) == (None, [])
    router.on_prefill_done(asked, placement, workers, 0.0)
    assert list(shared.residents.on("d0")) == [0.03]


def test_a_host_that_tells_of_no_end_fills_no_memory() -> None:
    residents = Residents()
    for index in range(3 * MOST_KNOWN):
        residents.placed(strict(str(index)), f"d{index % 3}")
    assert sum(len(residents.on(f"d{index}")) for index in range(3)) == MOST_KNOWN


def test_a_tpot_that_is_no_number_leaves_the_order_as_it_is() -> None:
    residents = Residents()
    for name, tpot_s in (("a", 0.02), ("b", float("nan")), ("c", 0.01)):
        residents.placed(request(name, terms=Terms(tpot_s=tpot_s)), "d0")
    assert residents.on("d0") == [0.01, 0.02]
    for name in "abc":
        residents.left(name)
    assert not residents.on("d0")


def test_the_tpots_on_a_worker_are_ascending_and_leave_with_their_requests() -> None:
    residents = Residents()
    for name, tpot_s in (("a", 0.03), ("b", 0.01), ("c", 0.03), ("d", 0.02)):
        residents.placed(request(name, terms=Terms(tpot_s=tpot_s)), "d0")
    assert residents.on("d0") == [0.01, 0.02, 0.03, 0.03]
    residents.left("a")
    residents.placed(request("b", terms=Terms(tpot_s=0.01)), "d1")
    assert (residents.on("d0"), residents.on("d1")) == ([0.02, 0.03], [0.01])
    for name in "acd":
        residents.left(name)
    assert not residents.on("d0")
