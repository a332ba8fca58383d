"""What the router does when workers die, hang, refuse or answer nonsense, and when clients leave."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from pdplugins.hosts.dynamo.router.component import RouterComponent
from pdplugins.testing.scripted import FixedRouter
from pdplugins.types import Role
from tests.hosts.dynamo.router.rig import Rig, settings, until

pytestmark = pytest.mark.dynamo

MANY = 40


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_nothing_is_lost_when_a_worker_dies_under_load_and_another_one_comes_in_its_place(rig: Rig, role: Role) -> None:
    """Answers that had begun go on elsewhere; the dead worker gets nothing after its first failure."""
    config = settings("dopd", any_role=False, rest_s=60.0)
    name = f"{rig.namespace(2, 2, both=False)}-{role}-1"

    async def run() -> None:
        async with rig.routed(config, 2, 2) as component:
            asking = [asyncio.create_task(rig.ask(200, 30, seed=n)) for n in range(MANY)]
            load = component.workers.by_id[name].view.load
            await until(lambda: load.running_requests or load.queued_requests, "the worker has work")
            rig.workers(2, 2, both=False)[name].signal(signal.SIGKILL)
            answers = await asyncio.gather(*asking)
            assert [status for status, _ in answers] == [200] * MANY
            assert {answer["usage"]["completion_tokens"] for _, answer in answers} == {30}
            assert component.metrics.faults["worker_failed"] > 0
            assert name not in component.workers.ready_ids
            before = component.metrics.faults["worker_failed"]
            assert (await rig.ask())[0] == 200
            assert component.metrics.faults["worker_failed"] == before
            dead = component.workers.by_id[name].instance
            rig.workers(2, 2, both=False)
            await until(lambda: len(component.workers.ready) == 4, "another worker is there")
            assert dead not in {worker.instance for worker in component.workers.by_id.values() if worker.alive}

    rig.run(run())


def test_a_worker_that_hangs_loses_its_requests_and_comes_back(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """They wait `first_token_s` for it, and no longer; it gets work again when it has rested."""
    config = settings("dopd", any_role=False, rest_s=1.0, first_token_s=3.0)
    names = [f"{rig.namespace(2, 2, both=False)}-{role}-2" for role in Role]  # others are killed above

    async def run() -> None:
        async with rig.routed(config, 2, 2, router=FixedRouter(*names), own=True) as component:
            worker = rig.workers(2, 2, both=False)[names[0]]
            worker.signal(signal.SIGSTOP)
            try:
                assert (await rig.ask())[0] == 200
                assert "no token for 3 s" in caplog.text
                assert names[0] not in component.workers.ready_ids
            finally:
                worker.signal(signal.SIGCONT)
            await until(lambda: component.workers.now_ready() and names[0] in component.workers.ready_ids, "it is back")
            before = component.workers.by_id[names[0]].view.load.recent_ttft_s
            assert (await rig.ask())[0] == 200
            assert component.workers.by_id[names[0]].view.load.recent_ttft_s != before, "it has prefilled"

    rig.run(run())


def test_a_client_that_leaves_stops_both_legs(rig: Rig) -> None:
    """By the workers' own counts of what they have in flight: while it prefills, and while it decodes.

    The prompts fit into the KV cache together: a mocker hangs when requests that wait for KV cache are cancelled.
    """
    config = settings("dopd", any_role=False)
    names = [f"{rig.namespace(2, 2, both=False)}-{role}-2" for role in Role]

    async def run() -> None:
        async with rig.routed(config, 2, 2, router=FixedRouter(*names), own=True) as component:
            workers = [rig.workers(2, 2, both=False)[name] for name in names]
            for worker, osl in zip(workers, (5, 2000), strict=True):
                asking = [asyncio.create_task(rig.ask(1500, osl, seed=n)) for n in range(4)]
                await until(lambda worker=worker: worker.served("inflight_requests").total(), "requests are served")
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
                await until(lambda worker=worker: not worker.served("inflight_requests").total(), "the leg has ended")
                await until(lambda: not component.admission.requests, "the router has nothing left")
            for worker in component.workers.by_id.values():
                load = worker.view.load
                assert (load._own_queued, load._own_running, load._own_running_tokens) == (0, 0, 0)

    rig.run(run())


def test_too_many_requests_are_refused_at_once_and_none_hangs(rig: Rig) -> None:
    """With the status that Dynamo's frontend passes on for a chat."""
    config = settings("dopd", any_role=False, max_requests=4)

    async def run() -> None:
        async with rig.routed(config, 2, 2) as component:
            answers = await asyncio.gather(*(rig.chat(100, 20, stream=False) for _ in range(20)))
            assert {status for status, _ in answers} == {200, 503}
            assert sum(status == 200 for status, _ in answers) >= 4
            assert (await rig.chat(100, 2, stream=False))[0] == 200, "nothing of it stays"
            assert 'overloads_total{of="requests"}' in component.exposition()

    rig.run(run())


def test_a_stop_finishes_what_is_in_flight_and_refuses_the_rest(rig: Rig) -> None:
    config = settings("dopd", any_role=False)

    async def run() -> None:
        async with rig.routed(config, 2, 2) as component:
            asking = [asyncio.create_task(rig.chat(100, 20, stream=False)) for _ in range(5)]
            await until(lambda: component.admission.requests == 5, "they are in flight")
            stopping = asyncio.create_task(component.stop(30.0))
            await until(lambda: component.admission.closed, "it stops")
            assert (await rig.chat(100, 2, stream=False))[0] == 503
            assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 5
            await stopping

    rig.run(run())


# --- a worker that answers nonsense, on the same transport as any other -----------------------------------------------


TOKEN = {"token_ids": [321]}


@pytest.mark.parametrize(
    "answer",
    [
        [],
        ["what?"],
        [{"tokens": 1}],
        [{"token_ids": None}],
        [{"token_ids": [], "finish_reason": {"error": "no memory"}}],
        [RuntimeError("no memory")],
        [TOKEN, TOKEN],
        [TOKEN, {"token_ids": [], "finish_reason": {"error": "no memory"}}],
        [TOKEN, RuntimeError("no memory")],
    ],
    ids=["nothing", "text", "no-tokens", "null", "error", "raises", "breaks-off", "late-error", "raises-late"],
)
def test_an_odd_answer_goes_on_elsewhere(rig: Rig, answer: list[Any]) -> None:
    """With the tokens that the client has got already, and no others of the odd worker."""
    config = settings("dopd", any_role=False, rest_s=60.0)
    namespace = rig.namespace(2, 2, both=False)

    class OddFirst(FixedRouter):
        def on_arrival(self, request: Any, workers: Any, now_s: float) -> Any:
            odd = [worker.id for worker in workers if not worker.id.startswith(namespace)]
            self.first, self.second = f"{namespace}-prefill-1", (*odd, f"{namespace}-decode-1")[0]
            return super().on_arrival(request, workers, now_s)

    async def run() -> RouterComponent:
        router = OddFirst("", "")
        async with (
            rig.odd_worker(namespace, answer),
            rig.routed(config, 2, 2, router=router, own=True, more=1) as component,
        ):
            status, said = await rig.ask(100, 6)
            assert status == 200, said
            assert said["usage"]["completion_tokens"] == 6
            assert said["choices"][0]["finish_reason"] == "length"
            return component

    component = rig.run(run())
    assert component.metrics.faults["worker_failed"] >= 1
    got = sum(chunk == TOKEN for chunk in answer)
    assert component.metrics.faults["resumed"] == (1 if got else 0)
