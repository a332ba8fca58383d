"""DOPD's router: which prompts stay on the decode worker, and which workers are taken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins import testing
from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.dopd.config import DopdRouterSettings
from pdplugins.policies.dopd.router import DopdRouter, local_prompt_tokens
from pdplugins.resources import data_dir
from pdplugins.testing import Worker, deployment
from pdplugins.types import Request


def profile(name: str) -> TableModel:
    return TableModel(read_profile(data_dir("profiles") / "h100" / f"{name}.json"))


TABLE_1 = profile("llama-70b-fp8-dopd-table-1")
PERF = profile("llama-3.1-70b-fp8")
DEPLOYMENT = deployment(PERF, gpu_budget=16, decode_tp=2)


def worker(
    name: str, queued_tokens: float = 0, running: float = 0, blocks: tuple[int, ...] = (), **told: object
) -> Worker:
    return testing.worker(
        name, queued_tokens=queued_tokens, running_requests=running, cached_blocks=set(blocks), **told
    )


def route(prompt: int, *workers: Worker, blocks: tuple[int, ...] = (), **settings: object) -> tuple[str, str | None]:
    router = DopdRouter(DopdRouterSettings(**settings), DEPLOYMENT)  # type: ignore[arg-type]
    placement = router.on_arrival(Request("r", 0.0, prompt, blocks=blocks), workers, 0.0)
    assert placement.split == prompt
    return placement.first, placement.second


def test_on_the_papers_timings_a_prompt_of_100_tokens_is_ultra_short_and_200_is_not() -> None:
    """Section II-C: 36 ms of prefill for 100 tokens, 46 ms for 200, and a transfer of 15 ms or more."""
    limit = local_prompt_tokens(TABLE_1, 1)
    assert 100 < limit < 200
    alone_s = TABLE_1.prefill_s(0, 1)
    assert TABLE_1.prefill_s(limit, 1) - alone_s <= TABLE_1.transfer_s(limit)
    assert TABLE_1.prefill_s(limit + 1, 1) - alone_s > TABLE_1.transfer_s(limit + 1)


def test_where_nobody_knows_how_long_a_decode_worker_prefills_no_prompt_stays_there() -> None:
    assert local_prompt_tokens(TABLE_1, 2) == 0
    assert DopdRouter(DopdRouterSettings(), deployment(TABLE_1, decode_tp=2)).local_tokens == 0


def test_a_slow_link_does_not_make_every_prompt_ultra_short() -> None:
    """A token of OPT-30B has 1.4 MB of KV cache: moving 2,000 tokens takes longer than to prefill them on 4 GPUs."""
    opt = profile("opt-30b")
    assert opt.prefill_s(2000, 4) - opt.prefill_s(0, 4) < opt.transfer_s(2000)
    limit = local_prompt_tokens(opt, 4)
    assert 300 < limit < 400
    assert opt.prefill_s(limit, 4) <= 2 * opt.prefill_s(0, 4) < opt.prefill_s(limit + 1, 4)


def test_ultra_short_prompts_stay_on_the_decode_worker_and_others_do_not() -> None:
    workers = worker("p0"), worker("d0")
    assert route(60, *workers) == ("d0", "d0")
    assert route(1000, *workers) == ("p0", "d0")
    assert route(60, *workers, local_tokens=0) == ("p0", "d0")
    assert route(500, *workers, local_tokens=500) == ("d0", "d0")


def busy(requests: float, context: float) -> Worker:
    return worker("d0", running=requests, decode_requests=requests, decode_tokens=requests * context)


def test_a_prompt_stays_only_where_the_step_with_it_keeps_the_tpot_slo() -> None:
    alone_s = PERF.prefill_s(0, 2)
    within, beyond = (PERF.decode_step_s(128, context, 2) for context in (1000, 8000))
    added_s = PERF.prefill_s(60, 2) - alone_s
    assert within + added_s < DEPLOYMENT.slo.tpot_s < beyond + added_s
    assert route(60, worker("p0"), busy(128, 1000)) == ("d0", "d0")
    assert route(60, worker("p0"), busy(128, 8000)) == ("p0", "d0")
    assert route(1000, worker("p0"), busy(1, 100), local_tokens=1000) == ("p0", "d0"), "whatever the settings say"


@pytest.mark.parametrize(
    "full",
    [
        worker("d0", queued_tokens=2000, running=10),
        worker("d0", running=256),
        worker("d0", running=10, free_kv_tokens=59),
        worker("d0", running=10, decode_requests=math.nan, decode_tokens=math.nan),
        worker("d0", running=math.nan),
    ],
    ids=["prompts wait", "full batch", "full KV cache", "unknown decodes", "unknown load"],
)
def test_a_prompt_leaves_a_decode_worker_whose_load_does_not_allow_it(full: Worker) -> None:
    assert route(60, worker("p0"), worker("d0", running=10, free_kv_tokens=60)) == ("d0", "d0")
    assert route(60, worker("p0"), full) == ("p0", "d0")


def test_what_the_decode_worker_has_cached_need_not_be_prefilled_elsewhere() -> None:
    workers = worker("p0"), worker("d0", blocks=(1, 2))
    assert route(1080, *workers, blocks=(1, 2)) == ("d0", "d0")
    assert route(1080, *workers, blocks=(7, 2)) == ("p0", "d0"), "a prefix is cached from its start or not at all"


def test_the_shortest_prefill_queue_and_the_emptiest_decode_worker_are_taken() -> None:
    workers = worker("p0", 500), worker("p1", 400), worker("d0", running=3), worker("d1", running=2)
    assert route(1000, *workers) == ("p1", "d1")


def test_a_cached_prefix_is_worth_its_tokens_of_queue_and_its_share_of_a_request() -> None:
    workers = (
        worker("p0", 900, blocks=(1,)),
        worker("p1", 400),
        worker("d0", running=2, blocks=(1,)),
        worker("d1", 0, 2),
    )
    assert route(1024, *workers, blocks=(1, 2)) == ("p0", "d0")


def test_a_worker_of_unknown_load_is_taken_last_and_one_role_alone_serves_both_phases() -> None:
    assert route(
        1000, worker("p0", math.nan), worker("p1", 9e9), worker("d0", running=math.nan), worker("d1", 0, 5)
    ) == (
        "p1",
        "d1",
    )
    assert route(1000, worker("d0", running=1), worker("d1")) == ("d0", "d1")


def test_no_worker_at_all_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="start at least one"):
        route(10)


numbers = st.one_of(st.floats(), st.integers(0, 10**6))
fleets = st.lists(
    st.builds(
        lambda name, queued, running, blocks: worker(name, queued, running, tuple(blocks)),
        st.sampled_from(["p0", "p1", "d0", "d1"]), numbers, numbers, st.lists(st.integers(0, 5)),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(fleets, st.integers(1, 10**7), st.lists(st.integers(0, 5)))
def test_any_load_gives_a_placement_on_workers_that_exist(fleet: list[Worker], prompt: int, blocks: list[int]) -> None:
    first, second = route(prompt, *fleet, blocks=tuple(blocks))
    assert {first, second} <= {worker.id for worker in fleet}


finite = st.integers(0, 4000)


@given(
    st.lists(st.tuples(finite, finite, st.sampled_from([(), (0,), (0, 1), (1,)])), min_size=1, max_size=8),
    st.integers(1, 2000),
)
def test_no_worker_is_cheaper_than_the_one_that_is_taken(
    loads: list[tuple[int, int, tuple[int, ...]]], prompt: int
) -> None:
    """A decode worker costs its requests less the cached share; a prefill worker, the tokens until this prompt ends."""
    prefill = [worker(f"p{n}", queued_tokens=queued, blocks=blocks) for n, (queued, _, blocks) in enumerate(loads)]
    decode = [worker(f"d{n}", running=running / 1000, blocks=blocks) for n, (_, running, blocks) in enumerate(loads)]
    first, second = route(prompt, *prefill, *decode, blocks=(0, 1), local_tokens=0)

    def cached(blocks: tuple[int, ...]) -> int:
        return min(512 * (2 if blocks == (0, 1) else blocks == (0,)), prompt)

    queues = {f"p{n}": queued - cached(blocks) for n, (queued, _, blocks) in enumerate(loads)}
    costs = {f"d{n}": running / 1000 - cached(blocks) / prompt for n, (_, running, blocks) in enumerate(loads)}
    if first != second:
        assert queues[first] == min(queues.values())
    assert costs[str(second)] == pytest.approx(min(costs.values()))
