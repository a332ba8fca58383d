"""Workers' views: what servers say of themselves, and what the gateway's own books say."""

from __future__ import annotations

import asyncio

import pytest

from pdplugins.gateway.books import LoadBook
from pdplugins.gateway.engines.sglang.engine import facts_of, report_of
from pdplugins.types import Role
from tests.gateway.fake import settled
from tests.gateway.rig import ask, config, stand


def test_a_view_carries_tp_capabilities_and_free_kv_tokens() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            view = it.gateway.backends.ready[0]
            assert view.free_kv_tokens is None
            it.workers[0].loads = {"num_used_tokens": 30_000}
            assert await settled(lambda: view.free_kv_tokens == 70_000)
            assert view.tp is None
            assert view.capabilities is not None
            assert view.capabilities.phases == frozenset(Role)
            async with it.client.get(it.gateway.url + "/workers") as answer:
                assert (await answer.json())[0]["free_kv_tokens"] == 70_000

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
    facts = facts_of({"disaggregation_mode": mode, "tp_size": 4, "max_total_num_tokens": 7}, dual=False)
    can = facts.kind.capabilities
    assert (can.phases, can.alone, can.splits) == (phases, alone, splits)
    assert (facts.tp, facts.kv_capacity_tokens) == (4, 7)


def test_used_kv_tokens_are_told_only_when_every_rank_tells_them() -> None:
    one, other = {"num_used_tokens": 5, "max_total_num_tokens": 10}, {"max_total_num_tokens": 10}
    assert report_of([one, one]).used_kv_tokens == 10
    assert report_of([one, other]).used_kv_tokens is None
    assert report_of([]).used_kv_tokens is None
    assert report_of([one, other]).kv_capacity_tokens == 20


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


def test_a_new_label_makes_a_new_tuple_of_workers_and_keeps_what_decodes() -> None:
    async def run() -> None:
        async with stand("dual", "dual", cfg=config("least-loaded")) as it:
            backends = it.gateway.backends
            before = backends.ready
            backends.relabel(backends.all[0].id, Role.DECODE)
            assert backends.ready == before
            assert backends.ready is not before
            assert backends.ready[0].role is Role.DECODE
            same = backends.ready
            backends.relabel(backends.all[0].id, Role.DECODE)
            assert backends.ready is same
            assert (await it.post("/generate", ask()))[0] == 200

    asyncio.run(run())


def test_the_role_of_a_stock_server_is_no_label() -> None:
    async def run() -> None:
        async with stand("prefill", "decode", cfg=config(dual=False)) as it:
            backends = it.gateway.backends
            with pytest.raises(ValueError, match="no role that can change"):
                backends.relabel(backends.all[0].id, Role.DECODE)
            with pytest.raises(ValueError, match="no role that can change"):
                backends.relabel("nobody", Role.DECODE)

    asyncio.run(run())
