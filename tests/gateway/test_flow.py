"""Flow control: requests wait before the workers, go on in the order of the policy, are refused, or leave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from pdplugins.types import FlowDecision, Go, Hold, Refuse, Request, Waiting, WorkerView
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, config, fast, stand

SELDOM = fast(poll_s=60)
"""Polls change nothing while a test runs."""


class Steered:
    """A flow policy that a test steers: whether the next one may go on, and who that is."""

    def __init__(self, most: int = 1) -> None:
        self.may_go: Callable[[tuple[WorkerView, ...], float], bool] = lambda _, __: len(self.in_service) < most
        self.last_first = False
        self.refuses: str | None = None
        self.hold_s: float | None = None
        self.waiting: list[Waiting] = []
        self.in_service: set[str] = set()
        self.left: list[str] = []
        self.endings: list[tuple[str, str, int]] = []

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.waiting.append(waiting)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        if not self.waiting or not workers:
            return Hold()
        if self.refuses is not None:
            return Refuse(self.waiting.pop(0).request.id, 7.2, self.refuses)
        if not self.may_go(workers, now_s):
            return Hold(None if self.hold_s is None else now_s + self.hold_s)
        chosen = self.waiting.pop(-1 if self.last_first else 0).request.id
        self.in_service.add(chosen)
        return Go(chosen)

    def on_left(self, request_id: str) -> None:
        self.left.append(request_id)
        self.waiting = [waiting for waiting in self.waiting if waiting.request.id != request_id]

    def on_ended(self, request: Any, outcome: Any) -> None:
        self.in_service.discard(request.id)
        self.endings.append((request.id, str(outcome.ending), outcome.output_tokens))


def test_what_waits_when_the_last_worker_goes_is_refused_in_time() -> None:
    """As are requests that come afterwards: nobody waits for the end of its own time."""
    policy = Steered()

    async def run() -> None:
        settings = fast(timeout_s=60, worker_wait_s=0.3, first_token_s=30, silence_s=30)
        async with stand("unified", cfg=config(dual=False), settings=settings, flow=policy, token_s=0.05) as it:
            asked = [asyncio.create_task(it.post("/generate", ask(count=200, rid="a")))]
            assert await settled(lambda: policy.in_service == {"a"})
            asked += [asyncio.create_task(it.post("/generate", ask(rid=name))) for name in "bc"]
            assert await settled(lambda: len(policy.waiting) == 2)
            began_s = monotonic()
            await it.workers[0].stop()
            for status, told in await asyncio.gather(*asked):
                assert (status, told["error"]["message"]) == (503, "no worker is there")
            assert monotonic() - began_s < 20
            assert sorted(policy.left) == ["b", "c"]
            assert it.gateway.serving.queue.length == 0

    asyncio.run(run())


async def one(it: Stand, rid: str, count: int = 9) -> list[int]:
    status, answer = await it.post("/generate", ask(count=count, rid=rid))
    assert status == 200, answer
    return list(answer["output_ids"])


async def all_wait(flow: Steered, *rids: str) -> None:
    assert await settled(lambda: [waiting.request.id for waiting in flow.waiting] == list(rids))


async def begin(it: Stand, flow: Steered, *rids: str, count: int = 9) -> list[asyncio.Task[list[int]]]:
    """Ask for these one after the other; the first goes on, the others wait, even if it ends before all are there."""
    tasks, usual = [], (flow.may_go, flow.hold_s)

    def gone() -> int:
        return len(flow.in_service) + len(flow.endings)

    flow.may_go, flow.hold_s = lambda _, __: not gone(), 0.05
    for number, rid in enumerate(rids):
        tasks.append(asyncio.create_task(one(it, rid, count)))
        await all_wait(flow, *rids[1 : number + 1])
        assert await settled(gone)
    flow.may_go, flow.hold_s = usual
    return tasks


async def metric(it: Stand, name: str, prefix: str = "pdplugins_gateway_") -> float:
    async with it.client.get(it.gateway.admin_url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"{prefix}{name} ")))


@pytest.mark.moderate
@pytest.mark.parametrize("last_first", [False, True])
def test_requests_go_on_in_the_order_of_the_policy_and_are_placed_then(last_first: bool) -> None:
    flow = Steered()
    flow.last_first = last_first

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow) as it:
            router: Fixed = it.route(Fixed())
            tasks = await begin(it, flow, "a", "b", "c", "d")
            assert [request.id for request in router.requests] == ["a"]
            assert await metric(it, "requests_waiting") == 3
            assert await asyncio.gather(*tasks) == [answer_of(PROMPT, 9)] * 4
            others = ["d", "c", "b"] if last_first else ["b", "c", "d"]
            assert [request.id for request in router.requests] == ["a", *others]
            assert flow.endings == router.endings == [(rid, "finished", 9) for rid in ["a", *others]]
            assert await metric(it, "requests_waiting") == 0
            assert await metric(it, "wait_seconds_count") == 4
            assert await settled(it.idle)

    asyncio.run(run())


def test_a_refused_request_gets_503_and_is_told_when_to_come_again() -> None:
    flow = Steered()
    flow.refuses = "overload"

    async def run() -> None:
        async with stand("dual", "dual", flow=flow) as it:
            router: Fixed = it.route(Fixed())
            async with it.client.post(it.gateway.url + "/v1/completions", json={"prompt": "x", "rid": "a"}) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "8")
                error = (await answer.json())["error"]
            assert (error["code"], error["type"]) == (503, "gateway_error")
            assert "overload" in error["message"]
            assert flow.endings == [("a", "refused", 0)]
            assert not router.requests
            assert not router.endings
            assert await metric(it, "requests_refused_total") == 1

    asyncio.run(run())


@pytest.mark.moderate
def test_a_full_queue_refuses_whatever_the_policy_says() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow, settings=fast(max_waiting=1)) as it:
            tasks = await begin(it, flow, "a", "b")
            async with it.client.post(it.gateway.url + "/generate", json=ask(rid="c")) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert await asyncio.gather(*tasks) == [answer_of(PROMPT, 9)] * 2
            assert sorted(flow.endings) == [("a", "finished", 9), ("b", "finished", 9), ("c", "refused", 0)]
            sample = it.gateway.metrics.registry.get_sample_value
            assert sample("pdplugins_gateway_overloads_total", {"of": "waiting"}) == 1

    asyncio.run(run())


def test_a_burst_fills_the_places_in_service_and_the_queue() -> None:
    """What goes on at once does not wait. If it counted, a burst would find the queue full too soon."""

    async def run() -> None:
        async with stand("dual", "dual", flow=Steered(most=2), settings=fast(max_waiting=3)) as it:
            queue = it.gateway.serving.queue
            assert queue is not None
            burst = [asyncio.create_task(queue.admit(Request(f"r{n}", monotonic(), 10))) for n in range(12)]
            assert await settled(lambda: sum(task.done() for task in burst) == 12 - 3)
            assert sum(task.done() and task.exception() is None for task in burst) == 2
            for task in burst:
                task.cancel()

    asyncio.run(run())


@pytest.mark.moderate
def test_a_client_that_leaves_leaves_the_queue() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow) as it:
            router: Fixed = it.route(Fixed())
            tasks = await begin(it, flow, "a", "b", "c")
            leaves = asyncio.create_task(one(it, "d"))
            await all_wait(flow, "b", "c", "d")
            leaves.cancel()
            assert await settled(lambda: flow.left == ["d"])
            await all_wait(flow, "b", "c")
            assert await asyncio.gather(*tasks) == [answer_of(PROMPT, 9)] * 3
            assert sorted(flow.endings) == [*((rid, "finished", 9) for rid in "abc"), ("d", "cancelled", 0)]
            assert "d" not in [request.id for request in router.requests]

    asyncio.run(run())


@pytest.mark.moderate
def test_the_wait_counts_into_the_time_of_the_request() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.2, flow=flow, settings=fast(timeout_s=0.5)) as it:
            first = asyncio.create_task(it.post("/generate", ask(rid="a")))
            assert await settled(lambda: flow.in_service == {"a"})
            flow.may_go = lambda _, __: False
            status, answer = await it.post("/generate", ask(rid="b"))
            assert (status, answer["error"]["code"]) == (504, 504)
            assert (await first)[0] == 504
            assert flow.left == ["b"]
            assert sorted(flow.endings) == [("a", "failed", 0), ("b", "failed", 0)]

    asyncio.run(run())


@pytest.mark.moderate
def test_a_worker_that_is_lost_while_requests_wait_gets_none_of_them() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow) as it:
            router: Fixed = it.route(Fixed())
            router.first = router.second = 0
            tasks = await begin(it, flow, "a", "b", "c")
            await it.workers[1].stop()
            assert await settled(lambda: len(it.gateway.backends.ready) == 1)
            assert await asyncio.gather(*tasks) == [answer_of(PROMPT, 9)] * 3
            assert it.workers[0].served == {"local": 3}

    asyncio.run(run())


@pytest.mark.moderate
def test_requests_wait_while_no_worker_is_there_and_go_on_when_one_comes() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", token_s=0.05, flow=flow, settings=fast(retries=0, worker_wait_s=60)) as it:
            first = asyncio.create_task(it.post("/generate", ask(rid="a")))
            assert await settled(lambda: flow.in_service == {"a"})
            second = asyncio.create_task(one(it, "b"))
            await all_wait(flow, "b")
            await it.workers[0].stop()
            assert (await first)[0] == 502
            assert await settled(lambda: not it.gateway.backends.ready)
            third = asyncio.create_task(one(it, "c"))
            await it.workers[0].start()
            assert await second == await third == answer_of(PROMPT, 9)
            assert sorted(flow.endings) == [("a", "failed", 0), ("b", "finished", 9), ("c", "finished", 9)]

    asyncio.run(run())


def test_the_policy_is_asked_again_at_the_time_that_it_names() -> None:
    flow = Steered()
    flow.hold_s = 0.1
    asked: list[float] = []

    def third_time(_: object, now_s: float) -> bool:
        asked.append(now_s)
        return len(asked) == 3

    flow.may_go = third_time

    async def run() -> None:
        async with stand("dual", "dual", flow=flow, settings=SELDOM) as it:
            assert await one(it, "a") == answer_of(PROMPT, 9)
            assert all(later - before >= 0.09 for before, later in itertools.pairwise(asked))

    asyncio.run(run())


@pytest.mark.moderate
def test_the_policy_is_asked_again_when_a_prefill_ends() -> None:
    """It lets a request go on when no prompt waits for prefill, though the one before still decodes."""
    flow = Steered()
    flow.may_go = lambda workers, _: not any(worker.load.queued_requests for worker in workers)

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow, settings=SELDOM) as it:
            router: Fixed = it.route(Fixed())
            router.first = router.second = 0
            tasks = [asyncio.create_task(it.stream("/generate", ask(rid=rid, count=40))) for rid in "abc"]
            assert await settled(lambda: len(router.requests) == 3)
            assert not router.endings
            await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize("placed", [(0, 1, None), (1, 1, None), (0, 1, 20), (0, 1, 63), (0, None, None)])
def test_the_policy_sees_the_request_that_went_on_before_it_is_asked_for_the_next_one(placed: Any) -> None:
    """Else it would let all of a burst go on for the one free place that it sees."""
    flow = Steered()
    seen: list[float] = []

    def note(workers: tuple[WorkerView, ...], _: float) -> bool:
        seen.append(sum(worker.load.queued_requests for worker in workers))
        return True

    flow.may_go = note

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow, settings=SELDOM) as it:
            router: Fixed = it.route(Fixed())
            router.first, router.second, router.split = placed
            router.later = 1
            for worker in it.workers:
                worker.faults.hang = True
            tasks = [asyncio.create_task(one(it, rid)) for rid in "abcd"]
            assert await settled(lambda: len(seen) == 4)
            assert seen == [0, 1, 2, 3]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in it.workers:
                worker.faults.hang = False
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.moderate
def test_what_waits_when_the_gateway_stops_is_still_answered() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.05, flow=flow, settings=fast(drain_s=5)) as it:
            tasks = await begin(it, flow, "a", "b", "c")
            await it.gateway.stop()
            assert await asyncio.gather(*tasks) == [answer_of(PROMPT, 9)] * 3

    asyncio.run(run())


class Hostile:
    """Does everything that a flow policy should not do."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def on_arrival(self, *_: Any) -> None:
        raise RuntimeError("cannot take it")

    def next(self, *_: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    on_left = on_ended = on_arrival


@pytest.mark.parametrize("answer", [ValueError("no"), None, Go("nobody"), Refuse("nobody", 1.0), Hold(), Hold(-1.0)])
def test_nothing_is_lost_whatever_the_policy_does(answer: Any) -> None:
    async def run() -> None:
        async with stand("dual", "dual", flow=Hostile(answer)) as it:
            answers = await asyncio.gather(*(one(it, f"r{number}") for number in range(20)))
            assert answers == [answer_of(PROMPT, 9)] * 20
            assert it.faults["flow_policy_error"] >= 20
            assert await settled(it.idle)

    asyncio.run(run())


@pytest.mark.moderate
def test_two_requests_of_one_name_are_two_requests() -> None:
    flow = Steered()

    async def run() -> None:
        async with stand("dual", "dual", token_s=0.02, flow=flow) as it:
            answers = await asyncio.gather(*(one(it, "same") for _ in range(4)))
            assert answers == [answer_of(PROMPT, 9)] * 4
            assert len({rid for rid, *_ in flow.endings}) == len(flow.endings) == 4

    asyncio.run(run())


def test_a_config_names_the_flow_policy() -> None:
    cfg = config("round-robin", flow={"name": "fcfs", "per_worker": 1})

    async def run() -> None:
        async with stand("dual", "dual", cfg=cfg, token_s=0.01) as it:
            tasks = [asyncio.create_task(one(it, f"r{number}")) for number in range(8)]
            most = 0
            while not all(task.done() for task in tasks):
                most = max(most, len(it.gateway.serving._ids) - int(it.gateway.metrics.waiting._value.get()))
                await asyncio.sleep(0.002)
            assert await asyncio.gather(*tasks) == [answer_of(PROMPT, 9)] * 8
            assert most == 2

    asyncio.run(run())


def test_without_a_flow_policy_nothing_waits() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            assert it.gateway.serving.queue is None
            assert all(backend.view.load.on_freed is None for backend in it.gateway.backends.all)
            assert await one(it, "a") == answer_of(PROMPT, 9)
            assert await metric(it, "wait_seconds_count") == 0

    asyncio.run(run())


class Telling(Steered):
    """Tells a number, and hears those of the router."""

    def __init__(self) -> None:
        super().__init__(most=100)
        self.signals = {"queue_requests": 7.0}
        self.heard: dict[str, float] = {}

    def on_signals(self, signals: dict[str, float], now_s: float) -> None:
        self.heard |= signals


def test_router_and_flow_policy_hear_each_others_signals() -> None:
    flow = Telling()

    async def run() -> None:
        async with stand("dual", "dual", cfg=config("arrow"), flow=flow) as it:
            router: Any = it.gateway.policies.router
            assert router.signals
            assert await settled(lambda: flow.heard.keys() >= set(router.signals))
            assert await metric(it, 'flow_signal{name="queue_requests"}', prefix="pdplugins_") == 7

    asyncio.run(run())
