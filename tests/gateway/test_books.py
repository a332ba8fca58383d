"""Workers' views: what servers say of themselves, and what the gateway's own books say."""

from __future__ import annotations

import asyncio

import pytest

from pdplugins.gateway.books import MOST_BLOCKS, CachedBlocks, LoadBook
from pdplugins.gateway.engines.sglang.protocol import dumps
from pdplugins.gateway.engines.sglang.reports import facts_of, report_of
from pdplugins.types import Role, RoleChange, RoleMove
from tests.gateway.fake import settled
from tests.gateway.rig import Fixed, ask, config, stand


def test_a_view_carries_tp_capabilities_and_free_kv_tokens() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            view = it.gateway.backends.ready[0]
            it.workers[0].loads = {"num_used_tokens": None}
            assert await settled(lambda: view.free_kv_tokens is None)
            it.workers[0].loads = {"num_used_tokens": 30_000}
            assert await settled(lambda: view.free_kv_tokens == 70_000)
            assert view.tp == 2
            assert view.capabilities is not None
            assert view.capabilities.phases == frozenset(Role)
            async with it.client.get(it.gateway.admin_url + "/workers") as answer:
                assert (await answer.json())[0]["free_kv_tokens"] == 70_000

    asyncio.run(run())


def test_a_worker_with_nothing_to_prefill_is_known_to_only_decode() -> None:
    """The books have every prompt as waiting until its first token, so policies may learn from what others take."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            load = it.gateway.backends.ready[0].load
            assert await settled(lambda: load.prefill_tokens == 0)
            assert load.queued_tokens == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "phases", "alone", "splits"),
    [
        ("prefill", {Role.PREFILL}, False, False),
        ("decode", {Role.DECODE}, False, False),
        ("null", set(), True, False),
    ],
)
def test_capabilities_follow_from_what_a_server_is(mode: str, phases: set[Role], alone: bool, splits: bool) -> None:
    facts = facts_of(dumps({"disaggregation_mode": mode, "tp_size": 4, "max_total_num_tokens": 7}), dual=False)
    can = facts.kind.capabilities
    assert (can.phases, can.alone, can.splits) == (phases, alone, splits)
    assert (facts.tp, facts.kv_capacity_tokens) == (4, 7)


def test_used_kv_tokens_are_told_only_when_every_rank_tells_them() -> None:
    one, other = {"num_used_tokens": 5, "max_total_num_tokens": 10}, {"max_total_num_tokens": 10}
    assert report_of(dumps({"loads": [one, one]})).used_kv_tokens == 10
    assert report_of(dumps({"loads": [one, other]})).used_kv_tokens is None
    assert report_of(dumps({"loads": []})).used_kv_tokens is None
    assert report_of(dumps({"loads": [one, other]})).kv_capacity_tokens == 20


def test_a_worker_that_comes_back_has_told_nothing_yet() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            backend = it.gateway.backends.all[1]
            it.workers[1].loads = {"num_used_tokens": 10}
            assert await settled(lambda: backend.view.free_kv_tokens == 99_990)
            await it.workers[1].stop()
            assert await settled(lambda: not backend.alive)
            assert backend.view.free_kv_tokens is None

    asyncio.run(run())


def test_books_tell_when_new_work_may_fit() -> None:
    told = []
    book = LoadBook("w")
    book.on_freed = lambda: told.append(len(told))
    book.prefill_starts(5)
    book.decode_starts(5)
    assert not told
    book.prefill_ends(5)
    book.decode_ends(5)
    book.reported(0, 0, 0)
    assert len(told) == 3


def test_books_tell_the_history_of_prompts_until_their_prefill_ends() -> None:
    book = LoadBook("w")
    book.prefill_starts(5, 100)
    book.prefill_starts(7, 30)
    assert (book.queued_tokens, book.prefill_history_tokens) == (12, 130)
    book.prefill_ends(5, 0.1, 100)
    assert (book.queued_tokens, book.prefill_history_tokens) == (7, 30)


class Moving(Fixed):
    """A router that wants a label changed with each placement, and hears what became of that."""

    def __init__(self, *moves: RoleMove) -> None:
        super().__init__()
        self.moves = list(moves)
        self.heard: list[tuple[str, str, str]] = []

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        return (self.moves.pop(0),) if self.moves else ()

    def on_role_change(self, change: RoleChange) -> None:
        self.heard.append((change.worker, change.role, change.stage))


def test_a_router_changes_labels_and_hears_of_it() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            one = it.workers[0].id
            router = it.route(Moving(RoleMove(one, Role.DECODE, "idle"), RoleMove(one, Role.PREFILL)))
            before = it.gateway.backends.ready
            assert (await it.post("/generate", ask()))[0] == 200
            after = it.gateway.backends.ready
            assert after == before
            assert after is not before
            assert [view.role for view in after] == [Role.DECODE, Role.DECODE]
            assert router.heard == [(one, "decode", "begun"), (one, "decode", "done")]
            assert (await it.post("/generate", ask()))[0] == 200
            assert [view.role for view in it.gateway.backends.ready] == [Role.PREFILL, Role.DECODE]
            async with it.client.get(it.gateway.admin_url + "/metrics") as answer:
                assert 'pdplugins_gateway_role_changes_total{by="router",stage="done"} 2.0' in await answer.text()

    asyncio.run(run())


def test_a_label_outlives_the_death_of_its_worker() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            backend = it.gateway.backends.all[0]
            it.route(Moving(RoleMove(backend.id, Role.DECODE)))
            await it.post("/generate", ask())
            await it.workers[0].stop()
            assert await settled(lambda: not backend.alive)
            await it.workers[0].start()
            assert await settled(lambda: backend.alive)
            assert backend.view.role is Role.DECODE
            it.route(Moving(RoleMove(backend.id, Role.PREFILL)))
            await it.post("/generate", ask())
            assert backend.view.role is Role.PREFILL

    asyncio.run(run())


def test_the_role_of_a_stock_server_is_no_label() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", cfg=config(dual=False)) as it:
            one = it.workers[0].id
            router = it.route(Moving(RoleMove(one, Role.DECODE), RoleMove("nobody", Role.DECODE)))
            for _ in range(2):
                assert (await it.post("/generate", ask()))[0] == 200
            assert [view.role for view in it.gateway.backends.ready] == [Role.PREFILL, Role.DECODE]
            assert router.heard == [(one, "decode", "refused")]

    asyncio.run(run())


def test_a_first_token_has_no_gap_before_it() -> None:
    load = LoadBook("w")
    load.decode_starts(100)
    load.tokens(1, None, 0.0)
    assert (load.running_tokens, load.recent_tbt_s) == (101, None)


def test_no_more_prefixes_are_kept_in_mind_than_a_kv_cache_can_have() -> None:
    """Whatever a worker says of the size of its own."""
    blocks = CachedBlocks()
    blocks.add(range(MOST_BLOCKS + 1), 10**12)
    assert 0 not in blocks
    assert 1 in blocks
    assert MOST_BLOCKS in blocks
