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

PERF = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-70b-fp8-dopd-table-1.json"))
DEPLOYMENT = deployment(PERF, gpu_budget=16)


def worker(name: str, queued_tokens: float = 0, running: float = 0, blocks: tuple[int, ...] = ()) -> Worker:
    return testing.worker(name, queued_tokens=queued_tokens, running_requests=running, cached_blocks=set(blocks))


def route(prompt: int, *workers: Worker, blocks: tuple[int, ...] = (), **settings: object) -> tuple[str, str | None]:
    router = DopdRouter(DopdRouterSettings(**settings), DEPLOYMENT)  # type: ignore[arg-type]
    placement = router.on_arrival(Request("r", 0.0, prompt, blocks=blocks), workers, 0.0)
    assert placement.split == prompt
    return placement.first, placement.second


def test_on_the_papers_timings_a_prompt_of_100_tokens_is_ultra_short_and_200_is_not() -> None:
    """Section II-C: 36 ms of prefill for 100 tokens, 46 ms for 200, and a transfer of 15 ms or more."""
    limit = local_prompt_tokens(PERF, 1)
    assert 100 < limit < 200
    alone_s = PERF.prefill_s(0, 1)
    assert PERF.prefill_s(limit, 1) - alone_s <= PERF.transfer_s(limit)
    assert PERF.prefill_s(limit + 1, 1) - alone_s > PERF.transfer_s(limit + 1)


def test_ultra_short_prompts_stay_on_the_decode_worker_and_others_do_not() -> None:
    workers = worker("p0"), worker("d0")
    assert route(100, *workers) == ("d0", "d0")
    assert route(1000, *workers) == ("p0", "d0")
    assert route(100, *workers, local_tokens=0) == ("p0", "d0")
    assert route(1000, *workers, local_tokens=1000) == ("d0", "d0")


def test_what_the_decode_worker_has_cached_need_not_be_prefilled_elsewhere() -> None:
    workers = worker("p0"), worker("d0", blocks=(1, 2))
    assert route(1100, *workers, blocks=(1, 2)) == ("d0", "d0")
    assert route(1100, *workers, blocks=(7, 2)) == ("p0", "d0"), "a prefix is cached from its start or not at all"


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
