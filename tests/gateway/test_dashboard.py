"""The dashboard of a gateway: it shows what clients got, who serves, and what was decided and why."""

from __future__ import annotations

import asyncio
from html import unescape

import pytest

from pdplugins.contracts.flow import Refuse
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.contracts.workers import Role
from pdplugins.gateway import dashboard
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.dashboard import Board, WatchedJournal
from pdplugins.report.address import Address
from pdplugins.runtime.decision import Decision
from pdplugins.runtime.journal import StandardJournal
from pdplugins.types import Placement, RoleMove
from tests.gateway.rig import Stand, ask, config, stand

HERE = Access(dashboard=Address("127.0.0.1", 0))


class Explains:
    """A router that says why, in words of others."""

    def on_arrival(self, request: object, workers: tuple[object, ...], now_s: float) -> Placement:
        first = workers[0].id  # type: ignore[attr-defined]
        return Placement(first, first, 0, reason="<script>alert('idle')</script>")

    on_prefill_done = on_arrival


async def shown(it: Stand, *words: str) -> str:
    """Return the page of the dashboard once it has all these words."""
    board = it.gateway.board
    assert board is not None
    async with asyncio.timeout(30):
        while True:
            async with it.client.get(board.url) as answer:
                raw = await answer.text()
                text = unescape(raw)
                assert answer.status == 200
            assert "<script>alert" not in raw
            if all(word in text for word in words):
                return text
            await asyncio.sleep(0.1)


@pytest.mark.moderate
def test_it_shows_attainment_workers_and_decisions_with_their_why() -> None:
    async def look() -> None:
        async with stand("dual", "dual", access=HERE) as it:
            it.route(Explains())
            for index in range(3):
                await it.stream("/generate", ask(rid=f"<img src=x>{index}"))
            text = await shown(it, "100.0% of 3 requests inside TTFT", "alert('idle')")
            assert "<h1>Last minute: 100.0% of 3 requests" in text
            assert text.index("Inside the objectives") < text.index("Requests that wait") < text.index("Decisions")
            assert "router: <img src=x>0 to " in text
            for worker in it.gateway.backends.all:
                assert worker.id in text

    asyncio.run(look())


@pytest.mark.moderate
def test_a_flip_is_counted_and_says_why() -> None:
    async def look() -> None:
        async with stand("dual", "dual", "dual", access=HERE, roles=("prefill", "prefill", "decode")) as it:
            worker = it.gateway.backends.all[0].id
            it.gateway.backends.labels.propose([RoleMove(worker, Role.DECODE, "prompts are short")])
            flip = f"router: {worker} from prefill to decode"
            await shown(it, flip, "prompts are short", "<dt>flips</dt><dd>1</dd>")

    asyncio.run(look())


@pytest.mark.moderate
def test_failures_are_outside_and_what_nobody_saw_does_not_count() -> None:
    async def look() -> None:
        async with stand("dual", access=HERE) as it:
            await it.stream("/generate", ask())
            await it.post("/generate", ask())  # a whole answer: nobody sees its first token
            await shown(it, "100.0% of 1 requests inside TTFT")
            board = it.gateway.board
            assert board is not None
            for ending in (Ending.FAILED, Ending.CANCELLED):
                board.heard(Outcome(ending))
            board.heard(Outcome(Ending.FINISHED, 9, ttft_s=1e6, tpot_s=0.01))
            board.heard(Outcome(Ending.FINISHED, 9, ttft_s=0.01, tpot_s=1e6))
            await shown(it, "25.0% of 4 requests inside TTFT", "<dt>failed or refused</dt><dd>1</dd>")

    asyncio.run(look())


def test_every_decision_is_counted_and_one_a_second_is_shown() -> None:
    inner = StandardJournal()
    board = Board(config(), Address("127.0.0.1", 0))
    journal = WatchedJournal(inner, board)
    placed = Decision(Kind.ROUTER, Placement("w1", "w2", 5, reason="it is free"))
    kept = 0
    for _ in range(500):
        if not journal.skips(Kind.ROUTER, 0.0):
            kept += 1
            journal.decided(placed, {})
    assert inner.decisions(Kind.ROUTER) == 500
    assert 1 <= kept < 50
    journal.decided(Decision(Kind.FLOW, Refuse("r1", 1.0, reason="too late")), {})
    text = str(board.live._decisions)
    assert "router: a request to w1, then w2" in text
    assert "it is free" in text
    assert "flow: refuses r1" in text


def test_without_a_dashboard_nothing_is_watched() -> None:
    async def look() -> None:
        async with stand("dual", cfg=config()) as it:
            assert it.gateway.board is None
            assert it.gateway.serving.on_end is None

    asyncio.run(look())


def test_more_requests_than_are_remembered_are_counted_over_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> None:
        async with stand("dual", "dual", access=HERE) as it:
            board = it.gateway.board
            assert board is not None
            clock = iter(range(10**6))
            monkeypatch.setattr(dashboard, "monotonic", lambda: next(clock) / 1000)
            board._began_s = -100.0
            for _ in range(dashboard.MOST_ENDED + 5000):
                board.heard(Outcome(Ending.FINISHED, 1, 0.1, None))
            now = board._now(it.gateway, next(clock) / 1000)
            assert float(now.facts["requests/s"]) == pytest.approx(1000, rel=0.01)
            assert now.verdict.startswith("Last 20.0 s: 100.0% of 20000 requests")

    asyncio.run(look())
