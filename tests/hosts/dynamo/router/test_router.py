"""Every router plugin in Dynamo's request path, on live mocker workers, and what it must know and do there."""

from __future__ import annotations

import asyncio
from collections import Counter
from statistics import median
from typing import Any

import pytest

from pdplugins.hosts.dynamo.router.component import RouterComponent
from pdplugins.limits import TermsConfig
from pdplugins.testing.scripted import FixedRouter, RecordingRouter
from pdplugins.types import Placement, Role, Terms
from tests.hosts.dynamo.router.rig import Rig, WorkerProcess, settings, until
from tests.hosts.dynamo.router.scripted import Flipping

pytestmark = pytest.mark.dynamo

REQUESTS = 24


class Noting:
    """Asks another router, and notes who is to prefill and who is to decode."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self.prefills: Counter[str] = Counter()
        self.decodes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def on_arrival(self, request: Any, workers: Any, now_s: float) -> Placement:
        return self._noted(self._router.on_arrival(request, workers, now_s), first=True)

    def on_prefill_done(self, request: Any, placement: Placement, workers: Any, now_s: float) -> Placement:
        return self._noted(self._router.on_prefill_done(request, placement, workers, now_s), first=False)

    def _noted(self, placement: Placement, *, first: bool) -> Placement:
        if first:
            self.prefills[placement.first] += 1
        if placement.second is not None:
            self.decodes[placement.second] += 1
        return placement


def counted(workers: dict[str, WorkerProcess]) -> dict[Role, Counter[str]]:
    """What the workers have counted themselves, by phase and worker."""
    phases = {"prefill.generate": Role.PREFILL, "second.prefill": Role.PREFILL}
    counts: dict[Role, Counter[str]] = {role: Counter() for role in Role}
    for name, worker in workers.items():
        for endpoint, served in worker.served().items():
            counts[phases.get(endpoint, Role.DECODE)][name] += served
    return counts


@pytest.mark.parametrize("name", ["arrow", "ampd", "dynaserve", "fusion", "dopd", "round-robin", "cache-aware"])
def test_the_pair_that_a_router_chose_serves(rig: Rig, name: str) -> None:
    """By the workers' own counters. A split, which no mocker has, becomes prefill and decode of the same workers."""
    both = name in {"arrow", "ampd", "dynaserve", "fusion"}
    config = settings(name if name in {"dopd"} or both else "dopd", any_role=both)
    if not both and name != "dopd":
        config = config.model_copy(update={"router": type(config.router)(name=name)})  # type: ignore[misc]
    workers = rig.workers(2, 2, both=both)

    async def run() -> None:
        async with rig.routed(config, 2, 2) as component:
            noting = Noting(component.policies.router)
            component.use(noting, None)
            before = counted(workers)
            answers = await asyncio.gather(*(rig.ask(200 + n, 4, seed=n) for n in range(REQUESTS)))
            assert [status for status, _ in answers] == [200] * REQUESTS
            assert all(answer["usage"]["completion_tokens"] == 4 for _, answer in answers)
            after = counted(workers)
        assert after[Role.PREFILL] - before[Role.PREFILL] == noting.prefills
        assert after[Role.DECODE] - before[Role.DECODE] == noting.decodes
        assert not [kind for kind in component.metrics.faults if kind.startswith("router_")]

    rig.run(run())


def test_a_router_in_shadow_is_asked_and_not_followed(rig: Rig) -> None:
    """It names one worker for everything; the other one of each pair serves, too."""
    names = [f"{rig.namespace(2, 2, both=True)}-{role}-1" for role in Role]

    async def run() -> RouterComponent:
        router = FixedRouter(names[0], names[0])
        async with rig.routed(
            settings("arrow", any_role=True, shadow=True), 2, 2, router=router, own=True
        ) as component:
            workers = rig.workers(2, 2, both=True)
            before = counted(workers)
            assert [(await rig.ask(200 + n, 4, seed=n))[0] for n in range(4)] == [200] * 4
            after = counted(workers)
            assert (after[Role.DECODE] - before[Role.DECODE])[names[0]] == 0
            return component

    component = rig.run(run())
    shadow = component.metrics.registry.get_sample_value
    assert shadow("pdplugins_dynamo_router_shadow_total", {"placement": "other"}) == 4


def test_a_session_names_the_worker_that_has_its_kv_cache(rig: Rig) -> None:
    """And how many tokens of the next prompt that worker has; another session, or none, has neither."""
    router = RecordingRouter()

    async def run() -> None:
        async with rig.routed(settings("arrow", any_role=True), 2, 2, router=router, own=True):
            for session in ("mine", "mine", "yours", None):
                assert (await rig.ask(600, 5, session=session))[0] == 200

    rig.run(run())
    first, again, other, none = (asked.request for asked in router.asked)
    assert first.session == again.session not in {other.session, None}
    assert none.session is None
    assert [request.bound_worker for request in (first, other, none)] == [None] * 3
    assert again.bound_worker is not None
    assert again.history_tokens == 599


def test_a_request_gets_what_it_asks_for_itself_through_the_frontend(rig: Rig) -> None:
    """By the headers that Dynamo's frontend hands on, and by its own hint; within what the operator allows."""
    router = RecordingRouter()
    allowed = TermsConfig(
        most_priority=2, most_weight=4, ttft_s=(0.5, 10), tpot_s=(0.02, 0.2), tenant_header="X-Tenant"
    )
    asks = {"ttft-ms": "100", "tpot-ms": "50", "weight": "3"}
    headers = {f"x-dynamo-meta-pdplugins-{name}": value for name, value in asks.items()}
    hint = {"agent_hints": {"priority": 7}}

    async def run() -> None:
        config = settings("arrow", any_role=True).model_copy(update={"terms": allowed})
        async with rig.routed(config, 2, 2, router=router, own=True):
            assert (await rig.ask(100, 5))[0] == 200
            tenant = {"x-dynamo-meta-tenant": "gold"}
            assert (await rig.ask(100, 5, headers=headers | tenant, nvext=hint))[0] == 200
            assert (await rig.ask(100, 5, headers={"x-dynamo-request-priority": "1"}))[0] == 200
            no_number = {"x-dynamo-meta-pdplugins-weight": "much"}
            assert (await rig.ask(100, 5, headers=no_number))[0] == 500, "what the frontend makes of our 400"

    rig.run(run())
    plain, own, urgent = (asked.request.terms for asked in router.asked)
    assert plain is None
    assert own is not None
    assert (own.priority, own.weight, own.ttft_s, own.tpot_s) == (2, 3.0, 0.5, 0.05)
    assert own.tenant not in {None, "gold"}
    assert urgent == Terms(priority=1)


def test_a_split_is_replaced_by_prefill_and_decode_and_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """No mocker engine goes on in the middle of a prompt."""
    names = [f"{rig.namespace(2, 2, both=True)}-{role}-1" for role in Role]

    async def run() -> RouterComponent:
        router = FixedRouter(names[0], names[1], 50)
        async with rig.routed(settings("arrow", any_role=True), 2, 2, router=router, own=True) as component:
            workers = rig.workers(2, 2, both=True)
            before = counted(workers)
            assert [(await rig.ask())[0] for _ in range(3)] == [200] * 3
            after = counted(workers)
            assert after[Role.PREFILL] - before[Role.PREFILL] == {names[0]: 3}
            assert after[Role.DECODE] - before[Role.DECODE] == {names[1]: 3}
            return component

    component = rig.run(run())
    assert component.metrics.faults["refused_stock_split"] == 3
    assert caplog.text.count("refused_stock_split") == 1


def test_workers_that_keep_their_role_serve_nothing_alone(rig: Rig) -> None:
    """A mocker that decodes would take a prompt as prefilled for nothing, so it is never sent one."""
    name = f"{rig.namespace(2, 2, both=False)}-decode-1"

    async def run() -> RouterComponent:
        router = FixedRouter(name, name)
        async with rig.routed(settings("dopd", any_role=False), 2, 2, router=router, own=True) as component:
            workers = rig.workers(2, 2, both=False)
            before = counted(workers)
            assert (await rig.ask())[0] == 200
            after = counted(workers)
            assert sum((after[Role.PREFILL] - before[Role.PREFILL]).values()) == 1
            assert after[Role.DECODE] - before[Role.DECODE] == {name: 1}
            return component

    assert rig.run(run()).metrics.faults["refused_local"] == 1


def test_the_state_is_told_to_its_end_while_workers_go(rig: Rig) -> None:
    async def run() -> None:
        async with rig.routed(settings("arrow", any_role=True), 2, 2, router=None, own=True) as component:
            told = component.state({}, None)
            row = await anext(told)
            gone = next(worker for worker in component.workers.by_id.values() if worker.id != row["worker"])
            component.workers.forget(gone)
            assert len([row, *[more async for more in told]]) == 4
            component.workers.add(gone)

    rig.run(run())


def test_the_state_shows_loads_and_an_idle_stack_has_none(rig: Rig) -> None:
    """While requests are served and after them; what the engines report of our own requests is not counted twice.

    On a busy machine a report may be older than the end of a request that it counts, which is then one of others until
    the next report. So this looks at half of the looks, and not at the worst one. Eight that count twice are 19 there.
    """

    async def state(component: RouterComponent) -> list[dict[str, Any]]:
        return [row async for row in component.state({}, None)]

    async def run() -> None:
        async with rig.routed(settings("arrow", any_role=True), 2, 2, router=None, own=True) as component:
            asking = asyncio.gather(*(rig.ask(200, 40, seed=n) for n in range(8)))
            counted: list[float] = []
            while not asking.done():
                counted.append(sum(row["running_requests"] for row in await state(component)))
                await asyncio.sleep(0.01)
            await asking
            assert max(counted) > 0
            assert median(counted) < 12

            def idle() -> bool:
                loads = [worker.view.load for worker in component.workers.by_id.values()]
                return not any(load.running_requests or load.queued_requests for load in loads)

            await until(idle, "no load")
            assert all(row["free_kv_tokens"] is not None for row in await state(component))
            assert any(row["recent_ttft_s"] for row in await state(component))
            assert "pdplugins_dynamo_router_requests_total" in component.exposition()

    rig.run(run())


def test_a_thousand_requests_with_flips_under_load_lose_nothing(rig: Rig) -> None:
    """A flip takes effect for the next request; what a worker is doing in its old role it finishes."""
    router = Flipping(every=10)

    async def run() -> None:
        async with rig.routed(settings("arrow", any_role=True), 2, 2, router=router, own=True) as component:
            workers = rig.workers(2, 2, both=True)
            before = counted(workers)
            left = iter(range(1000))

            async def client() -> list[int]:
                return [(await rig.ask(50, 3, seed=n))[0] for n in left]

            statuses = [status for some in await asyncio.gather(*(client() for _ in range(40))) for status in some]
            assert Counter(statuses) == {200: 1000}
            after = counted(workers)
            for role in Role:
                assert sum((after[role] - before[role]).values()) == 1000
            assert component.metrics.faults["worker_failed"] == 0

    rig.run(run())
    assert router.flips >= 50
    assert router.late == 0
