"""The global scheduler: what Algorithm 1 balances, whom it chooses, and what it does with bad views."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError
from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.router import DynaServeRouter
from pdplugins.testing import Worker
from pdplugins.types import Capabilities, Deployment, Ending, Outcome, Placement, Request, Role, Terms, WorkerLoad
from tests.policies.dynaserve.model import Model, deployment_of, worker

BUSY = WorkerLoad("w", 1, 100, 8, 8000)
"""A worker with hardly anything that waits."""
SILENT = WorkerLoad("w", math.nan, math.nan, math.nan, math.nan)
"""A worker that reports nothing, so that the prediction alone counts."""
BALANCED = {"split": "balanced", "underused": 0, "pairs": "any", "predictor": "oracle"}
"""Algorithm 1 as printed, for every request."""


def router(deployment: Deployment, **settings: object) -> DynaServeRouter:
    return DynaServeRouter(DynaServeRouterSettings.model_validate(settings), deployment)


def pair(load: WorkerLoad = BUSY) -> tuple[Worker, Worker]:
    return worker("a", Role.PREFILL, load), worker("b", Role.DECODE, load)


def request(prompt: int, output: int | None, name: str = "r", **more: object) -> Request:
    return replace(Request(name, 0.0, prompt, output), **more)  # type: ignore[arg-type]


def placed(
    route: DynaServeRouter, workers: tuple[Worker, ...], count: int, prompt: int, output: int
) -> list[Placement]:
    """Return where `count` requests at once go."""
    return [route.on_arrival(request(prompt, output, str(index)), workers, 0.0) for index in range(count)]


def pool(prefill: int, decode: int, kv_tokens: int = 200_000) -> tuple[Worker, ...]:
    return tuple(
        worker(f"{role[0]}{index}", role, kv_capacity_tokens=kv_tokens)
        for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode))
        for index in range(count)
    )


def steady(
    deployment: Deployment, gap_s: float, prompt: int, output: int, kv_tokens: int = 200_000, **settings: object
) -> list[Placement]:
    """Return the last placements of 300 requests, one each `gap_s`, on two workers of each role that report nothing."""
    route, workers, placements = router(deployment, predictor="oracle", **settings), pool(2, 2, kv_tokens), []
    for one in workers:
        one.load = SILENT
    for index in range(300):
        asked = request(prompt, output, str(index))
        placements.append(route.on_arrival(asked, workers, index * gap_s))
    return placements[200:]


def test_an_underused_pool_splits_nothing(deployment: Deployment) -> None:
    """Section 3.1: co-location while the workers have time for prompts."""
    assert all(placement.first == placement.second for placement in steady(deployment, 0.2, 1000, 100))


def test_a_busy_pool_prefills_anywhere_and_decodes_on_decode_workers(deployment: Deployment) -> None:
    placements = steady(deployment, 0.03, 1000, 100)
    assert {placement.second[0] for placement in placements if placement.second} == {"d"}
    split = [placement for placement in placements if placement.first != placement.second]
    assert len(placements) > len(split) > len(placements) / 4
    assert all(placement.split == 1000 for placement in split)


def test_with_any_pair_a_busy_pool_decodes_everywhere(deployment: Deployment) -> None:
    placements = steady(deployment, 0.03, 1000, 100, pairs="any")
    assert {placement.second for placement in placements} == {"p0", "p1", "d0", "d1"}


def test_requests_with_a_tpot_of_their_own_decode_together_and_others_apart(deployment: Deployment) -> None:
    """The shortest step takes 20 ms: 30 ms can be kept, and 10 cannot, so that nobody makes room for it."""
    route, workers = router(deployment), pool(2, 2)

    def decodes(name: str, tpot_s: float | None) -> str | None:
        return route.on_arrival(request(1000, 200, name, terms=Terms(tpot_s=tpot_s)), workers, 0.0).second

    hopeless = {decodes(f"hopeless {index}", 0.01) for index in range(8)}
    strict = {decodes(f"strict {index}", 0.03) for index in range(4)}
    others = {decodes(f"usual {index}", own_s) for index, own_s in enumerate([None, 0.2, math.nan] * 8)}
    assert len(hopeless) > 2
    assert len(strict) == 1
    assert strict.isdisjoint(others)
    for index, ending in enumerate([Ending.FINISHED, Ending.CANCELLED] * 2):
        route.on_ended(request(1000, 200, f"strict {index}"), Outcome(ending, 200))
    assert strict <= {decodes(f"later {index}", None) for index in range(24)}


def test_a_host_that_tells_of_no_end_fills_no_memory(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.policies.dynaserve.router.MOST_KNOWN", 4)
    route, workers = router(deployment, **BALANCED), pool(1, 1)
    for index in range(20):
        route.on_arrival(request(1000, 200, str(index), terms=Terms(tpot_s=0.05)), workers, index * 0.01)
    assert len(route._strict) <= 4
    assert sum(server.strict for server in route._servers.values()) == sum(map(len, route._strict.values()))


def test_decode_workers_that_are_full_leave_decodes_to_the_others(deployment: Deployment) -> None:
    """There the TBT SLO, the largest batch or the KV cache forbids more."""
    placements = steady(deployment, 0.03, 500, 2000, kv_tokens=12_000)
    assert any(placement.second and placement.second[0] == "p" for placement in placements)


def test_a_prompt_goes_where_its_first_token_comes_first(deployment: Deployment) -> None:
    """Among equals the first; a worker that reports a queue comes later."""
    workers = pool(2, 2)
    workers[0].load = WorkerLoad("p0", 20, 20_000)
    placements = placed(router(deployment), workers, 3, 1000, 100)
    assert {placement.first for placement in placements} == {"p1", "d0", "d1"}


@pytest.mark.parametrize("limited", [0, 1])
def test_a_worker_that_cannot_split_gets_whole_phases(deployment: Deployment, limited: int) -> None:
    """A host that does not know what its workers can do is asked for splits as before."""

    def run(capabilities: Capabilities | None) -> list[Placement]:
        workers = pair(SILENT)
        workers[limited].capabilities = capabilities
        return placed(router(deployment, **BALANCED), workers, 12, 2048, 512)

    free = run(None)
    assert any(placement.split not in (0, 2048) for placement in free)
    assert run(Capabilities(splits=True)) == free
    assert all(placement.split == 2048 for placement in run(Capabilities(splits=False)))


def test_stock_workers_serve_in_pairs(deployment: Deployment) -> None:
    """A prefill server and a decode server that cannot serve alone get the two phases of every request."""
    workers = pool(2, 2)
    for one in workers:
        one.capabilities = Capabilities(frozenset({one.role}), alone=False, splits=False)
    for placement in placed(router(deployment), workers, 8, 1000, 100):
        assert (placement.first[0], (placement.second or "")[0], placement.split) == ("p", "d", 1000)


def test_work_is_done_as_time_passes(deployment: Deployment) -> None:
    """What has ended counts nothing: the last requests are placed as the first ones."""
    route, workers = router(deployment, **BALANCED), pair(SILENT)
    early = [(p.first, p.second, p.split) for p in placed(route, workers, 6, 2048, 512)]
    late = [route.on_arrival(request(2048, 512, f"late {index}"), workers, 1000.0) for index in range(6)]
    assert [(p.first, p.second, p.split) for p in late] == early


def test_groups_of_workers_take_turns(deployment: Deployment) -> None:
    """A decision looks at about `choices` workers, of both roles, and all workers get their turn."""
    workers = pool(8, 8)
    for one in workers:
        one.load = SILENT
    placements = placed(router(deployment, choices=4), workers, 16, 1000, 100)
    assert {placement.first for placement in placements} == {one.id for one in workers}
    assert placed(router(deployment, choices=1), workers, 16, 1000, 100) != placements


def test_the_margin_is_part_of_the_length(deployment: Deployment) -> None:
    """Section 5: 20 tokens against underestimation."""
    reason = router(deployment, predictor="oracle").on_arrival(request(1000, 500), pair(), 0.0).reason
    assert reason == "whole, 1520 tokens"


def test_one_worker_does_everything(deployment: Deployment) -> None:
    placement = router(deployment).on_arrival(request(1000, 500), (worker("a"),), 0.0)
    assert placement == Placement("a", "a", 1000, "whole, 1276 tokens")


def test_a_short_piece_is_not_handed_over(deployment: Deployment) -> None:
    for least in (64, 256):
        route = router(deployment, **BALANCED, least_tokens=least, margin_tokens=0)
        for placement in placed(route, pair(SILENT), 30, 2048, 512):
            if placement.first != placement.second:
                assert least <= placement.split <= 2048 + 512 - least


def test_a_request_that_only_one_worker_can_hold_goes_there(deployment: Deployment) -> None:
    small = tuple(worker(f"small-{index}", kv_capacity_tokens=1000) for index in range(5))
    large = worker("large", kv_capacity_tokens=10_000)
    for workers in ((*small, large), (large, *small), (small[0], large)):
        placement = router(deployment).on_arrival(request(5000, 100), workers, 0.0)
        assert (placement.first, placement.second) == ("large", "large")


def test_a_prompt_longer_than_any_kv_cache_is_placed_for_the_host_to_refuse(deployment: Deployment) -> None:
    placement = router(deployment).on_arrival(request(10**9, 10**9), pair(), 0.0)
    assert placement.first == placement.second


def test_no_worker_is_an_error_that_says_what_to_do(deployment: Deployment) -> None:
    with pytest.raises(ConfigError, match="start at least one"):
        router(deployment).on_arrival(request(10, 10), (), 0.0)


def test_a_session_starts_where_its_cache_is(deployment: Deployment) -> None:
    workers = tuple(worker(name, load=BUSY) for name in "abcd")
    placement = router(deployment).on_arrival(request(1000, 500, bound_worker="c"), workers, 0.0)
    assert placement.first == "c"


def test_the_history_of_a_session_is_not_computed_again(deployment: Deployment) -> None:
    """A round of 20,000 tokens of which 19,000 are cached keeps its worker busy for the prompt of 1,000."""

    def busy_s(history: int) -> float:
        route, workers = router(deployment), pair(SILENT)
        route.on_arrival(request(20_000, 1, bound_worker="a", history_tokens=history), workers, 0.0)
        return route._servers["a"].timeline.done_s(0.0, 0.0)

    assert busy_s(19_000) < 0.15 * busy_s(0)


def test_as_printed_the_first_part_is_for_prefill_workers(deployment: Deployment) -> None:
    """Section 6.1: with `pairs: roles` one pool takes the first micro-requests and the other one the second."""
    workers = pool(2, 2)
    for one in workers:
        one.load = SILENT
    for placement in placed(router(deployment, **{**BALANCED, "pairs": "roles"}), workers, 20, 1000, 500):
        if placement.first != placement.second:
            assert (placement.first[0], (placement.second or "")[0]) == ("p", "d")


def test_a_placement_that_is_whole_stays(deployment: Deployment) -> None:
    placement = Placement("a", "b", 5)
    assert router(deployment).on_prefill_done(request(1, 1), placement, pair(), 0.0) is placement


number = st.one_of(st.none(), st.just(math.nan), st.just(math.inf), st.floats(-1e9, 1e9))
loads = st.builds(WorkerLoad, st.just("w"), number, number, number, number, decode_requests=number)  # type: ignore[arg-type]
arrivals = st.lists(
    st.tuples(st.integers(0, 200_000), st.one_of(st.none(), st.integers(0, 50_000)), st.floats(0, 30)), max_size=12
)


@pytest.mark.moderate
@given(
    st.lists(loads, min_size=1, max_size=5),
    arrivals,
    st.sampled_from(["any", "roles"]),
    st.sampled_from(["prompt", "balanced"]),
)
def test_every_token_is_placed_exactly_once_whatever_the_loads_say(
    said: list[WorkerLoad], traffic: list[tuple[int, int | None, float]], pairs: str, split: str
) -> None:
    """Tokens [0, split) on one live worker, the rest on another: nothing twice, nothing lost."""
    workers = tuple(worker(f"w{i}", list(Role)[i % 2], load) for i, load in enumerate(said))
    names = {worker.id for worker in workers}

    def run() -> list[Placement]:
        settings = {"pairs": pairs, "split": split, "underused": 0, "predictor": "oracle"}
        route, now_s, placements = router(deployment_of(Model()), **settings), 0.0, []
        for index, (prompt, output, gap_s) in enumerate(traffic):
            now_s += gap_s
            placements.append(route.on_arrival(request(prompt, output, str(index)), workers, now_s))
        return placements

    placements = run()
    for (prompt, output, _), placement in zip(traffic, placements, strict=True):
        assert {placement.first, placement.second} <= names
        length = max(prompt, 1) + (256 if output is None else max(output, 1)) + 20
        if placement.first != placement.second:
            assert 0 < placement.split < length
    assert run() == placements, "the same views give the same placements"


@pytest.mark.parametrize("split", ["prompt", "balanced"])
@pytest.mark.parametrize("ending", [Ending.FAILED, Ending.CANCELLED])
def test_what_will_not_be_done_is_taken_back(deployment: Deployment, ending: Ending, split: str) -> None:
    """A prompt that no KV cache holds fails at once, and later requests go where they would have gone without it."""
    settings = {**BALANCED, "split": split}
    spared, workers = router(deployment, **settings), pair(SILENT)
    huge = request(1_000_000, 512, "huge")
    spared.on_arrival(huge, workers, 0.0)
    spared.on_ended(huge, Outcome(ending))
    assert placed(spared, workers, 6, 2048, 512) == placed(router(deployment, **settings), workers, 6, 2048, 512)


def test_a_request_that_is_placed_again_is_there_once(deployment: Deployment) -> None:
    """A host places a request anew whose worker has failed."""
    once, often, workers = router(deployment), router(deployment), pair(SILENT)
    for route, times in ((once, 1), (often, 9)):
        for _ in range(times):
            route.on_arrival(request(20_000, 512), workers, 0.0)
    assert placed(often, workers, 4, 2048, 512) == placed(once, workers, 4, 2048, 512)


def test_a_host_that_has_not_said_the_kv_capacity_is_taken_to_have_the_usual_one(deployment: Deployment) -> None:
    """The gateway knows it from the first load report on; until then it says 0."""

    def run(kv_tokens: int) -> list[Placement]:
        return steady(deployment, 0.03, 1000, 100, kv_tokens=kv_tokens)

    assert run(0) == run(200_000)


def test_state_does_not_grow_with_history(deployment: Deployment) -> None:
    """A router keeps a few numbers of each worker, and forgets workers that left."""
    route = router(deployment, predictor="quantile", window=8)
    for fleet in range(10):
        workers = tuple(worker(f"w{fleet}-{index}", load=BUSY) for index in range(3))
        for index in range(50):
            asked = request(1000, None, str(index))
            route.on_arrival(asked, workers, float(index))
            route.on_ended(asked, Outcome(Ending.FINISHED, index))
    assert len(route._servers) == 3
    assert not route._given
    assert all(len(seen) <= 8 for seen in route._lengths._recent.values())  # type: ignore[attr-defined]
