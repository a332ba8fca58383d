"""Waits with deadlines: each ends at its own time, or with all others, and as `asyncio.timeout` would end it."""

from __future__ import annotations

import asyncio

import pytest

from pdplugins.gateway.deadlines import Deadlines


def test_each_wait_ends_at_its_own_time_though_one_timer_serves_all() -> None:
    async def work() -> None:
        every, ended = Deadlines(), list[str]()

        async def wait(name: str, seconds: float | None) -> None:
            try:
                with every.within(seconds):
                    await asyncio.sleep(60)
            except TimeoutError:
                ended.append(name)

        tasks = [asyncio.create_task(wait(*each)) for each in (("long", 0.3), ("short", 0.05), ("none", None))]
        await asyncio.gather(*tasks[:2])
        assert ended == ["short", "long"]
        assert not tasks[2].done()
        every.expire()
        await tasks[2]
        assert ended == ["short", "long", "none"]

    asyncio.run(work())


def test_what_has_left_in_time_hears_nothing_later() -> None:
    async def work() -> None:
        every = Deadlines()
        with every.within(0.02) as wait:
            pass
        wait.end()
        with every.within(60):
            await asyncio.sleep(0.1)  # the timer of the first one rings
        every.expire()
        await asyncio.sleep(0)
        assert (task := asyncio.current_task()) is not None
        assert not task.cancelling()

    asyncio.run(work())


def test_a_cancellation_from_outside_stays_one() -> None:
    """Also when the time is over in the same moment."""

    async def work() -> None:
        every = Deadlines()

        async def wait() -> None:
            with every.within(60):
                await asyncio.sleep(60)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        every.expire()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())


def test_of_waits_inside_of_each_other_the_one_whose_time_is_over_ends() -> None:
    async def work() -> None:
        outer, inner = Deadlines(), Deadlines()
        with pytest.raises(TimeoutError), outer.within(0.02), inner.within(60):
            await asyncio.sleep(60)
        with outer.within(60):
            with pytest.raises(TimeoutError), inner.within(0.02):
                await asyncio.sleep(60)
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()

    asyncio.run(work())


def test_many_waits_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        loop, every, timers = asyncio.get_running_loop(), Deadlines(), list[float]()
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda at_s, *args: timers.append(at_s) or call_at(at_s, *args))
        for _ in range(100):
            with every.within(60):
                pass
        assert len(timers) == 1

    asyncio.run(work())
