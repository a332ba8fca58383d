"""The router's component on workers that answer at once: role flips under load, clients that leave, a stop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from typing import Any

import pytest

from pdplugins.config import find, load
from pdplugins.hosts.dynamo.router.component import RouterComponent
from pdplugins.hosts.dynamo.router.engines import MOCKER, SGLANG, EngineKind
from pdplugins.limits import TermsConfig
from pdplugins.runtime.assembly import build_deployment
from pdplugins.testing.scripted import FixedRouter, RecordingRouter
from pdplugins.types import Outcome, Placement, Request, Role, Terms
from tests.hosts.dynamo.router.scripted import LAST, PREFILLED, TOKEN, Flipping, Leg, Registry

ANSWERS = {Role.PREFILL: (PREFILLED, LAST), Role.DECODE: (TOKEN, TOKEN, LAST)}
RUNTIME = {"total_kv_blocks": 100, "disaggregated_endpoint": {"bootstrap_host": "h", "bootstrap_port": 1}}
STOPPED = TOKEN | {"finish_reason": "stop"}
REQUEST: dict[str, Any] = {"token_ids": [1] * 40, "stop_conditions": {"max_tokens": 2}}


class Stand:
    """A router over two prefill and two decode workers, which do both phases or their own one."""

    def __init__(
        self,
        router: Any,
        terms: dict[str, Any] | None = None,
        *,
        kind: EngineKind = MOCKER,
        both: bool = True,
        **answers: Any,
    ) -> None:
        config = load(find("arrow" if both else "dopd"))
        config = config.model_copy(update={"terms": TermsConfig.model_validate(terms or {})})
        self.component = RouterComponent(config, build_deployment(config), kind=kind)
        self.component.use(router, None)
        self.registries = {
            place: Registry(*answers.get(place.phase, ANSWERS[place.phase])) for place in kind.places(both=both)
        }
        workers = self.component.workers
        workers._clients = dict(self.registries)
        workers._subscribers = {place.component: one for place, one in self.registries.items()}
        workers._decode = None  # nothing is reported here
        for number in range(4):
            role = list(Role)[number % 2]
            for place, registry in self.registries.items():
                if place.role is role or (place.role is None and place.phase is not role):
                    registry.joins(number, f"w{number}", runtime_config=RUNTIME | {"stable_routing_id": f"w{number}"})
        workers.look()

    def served(self, phase: Role) -> Counter[int]:
        """Legs of a phase, by instance."""
        return Counter(to for place, one in self.registries.items() if place.phase is phase for to in one.to)

    async def ask(self, context: Leg | None = None, **fields: Any) -> list[Any]:
        return [chunk async for chunk in self.component.generate(REQUEST | fields, context or Leg())]


def test_a_thousand_requests_with_flips_under_load_lose_nothing() -> None:
    """A flip takes effect for the next request; what a worker is doing in its old role it finishes."""
    router = Flipping()

    async def run() -> None:
        stand = Stand(router)
        left = iter(range(1000))

        async def client() -> int:
            return sum([(await stand.ask()) == [TOKEN, TOKEN, LAST] for _ in left])

        assert sum(await asyncio.gather(*(client() for _ in range(40)))) == 1000
        for role in Role:
            served = stand.served(role)
            assert served.total() == 1000
            assert len(served) > 2, "more than the two that began in that role"
        assert not stand.component.metrics.faults
        assert not stand.component.admission.requests
        assert all(not worker.view.load.running_requests for worker in stand.component.workers.by_id.values())

    asyncio.run(run())
    assert router.flips > 100
    assert router.late == 0


class Split(FixedRouter):
    """Lets the first worker give the first hundred tokens of an answer, and keeps what it is told of the end."""

    def __init__(self) -> None:
        super().__init__("w0", "w1", len(REQUEST["token_ids"]) + 100)
        self.ended: list[int] = []

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.ended.append(outcome.output_tokens)


def test_an_answer_that_ends_with_its_first_part_is_counted_whole() -> None:
    router = Split()

    async def run() -> None:
        stand = Stand(router, kind=SGLANG, **dict.fromkeys(Role, [TOKEN] * 49 + [STOPPED]))
        chunks = await stand.ask(stop_conditions={"max_tokens": 200})
        assert sum(len(chunk["token_ids"]) for chunk in chunks) == 50
        assert "pdplugins_dynamo_router_output_tokens_total 50.0" in stand.component.exposition()

    asyncio.run(run())
    assert router.ended == [50]


def test_an_answer_that_breaks_off_goes_on_where_workers_do_one_phase() -> None:
    """The router leaves open who decodes, also when it is asked again."""

    async def run() -> None:
        stand = Stand(Flipping(every=1000), both=False, **{Role.PREFILL: (PREFILLED, LAST), Role.DECODE: (TOKEN,)})
        prefill, decode = stand.registries.values()
        answer = []
        async for chunk in stand.component.generate(REQUEST, Leg()):
            answer.append(chunk)
            decode.chunks = (TOKEN, LAST)
        assert answer == [TOKEN, TOKEN, LAST]
        assert [body["token_ids"] for body in (prefill.sent[1], decode.sent[1])] == [[*REQUEST["token_ids"], 7]] * 2
        assert stand.component.metrics.faults == {"worker_failed": 1, "resumed": 1}
        assert len(set(decode.to)) == 2, "not where it broke off"

    asyncio.run(run())


class EarlyBinder(FixedRouter):
    """Leaves open who decodes, is asked before the prompt is computed, and keeps what it is told of that."""

    def __init__(self) -> None:
        super().__init__("w0", None)
        self.heard: list[str] = []

    def bind_early(self, request: Request, placement: Placement, workers: Any, now_s: float) -> Placement:
        self.heard.append("bound")
        return Placement(placement.first, "w1", placement.split)

    def on_prefill_done(self, request: Request, placement: Placement, workers: Any, now_s: float) -> Placement:
        self.heard.append("done")
        return Placement(placement.first, "w1", placement.split)

    def on_prefilled(self, request: Request, now_s: float) -> None:
        self.heard.append("computed")

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self.heard.append("ended")


def test_a_router_that_binds_early_hears_when_the_prompt_is_computed() -> None:
    """Workers that move KV cache while both compute need to know at once who decodes. Its books of prompts go on."""
    router = EarlyBinder()

    async def run() -> None:
        stand = Stand(router, kind=SGLANG, both=False, **dict.fromkeys(Role, (TOKEN, LAST)))
        assert await stand.ask() == [TOKEN, LAST]

    asyncio.run(run())
    assert router.heard == ["bound", "computed", "ended"]


def test_so_does_one_that_is_asked_again_where_an_answer_broke_off() -> None:
    router = EarlyBinder()

    async def run() -> None:
        stand = Stand(router, both=False, **{Role.PREFILL: (PREFILLED, LAST), Role.DECODE: (TOKEN,)})
        _, decode = stand.registries.values()
        async for _ in stand.component.generate(REQUEST, Leg()):
            decode.chunks = (TOKEN, LAST)

    asyncio.run(run())
    assert router.heard == ["done", "bound", "computed", "ended"]


@pytest.mark.parametrize(
    ("chunks", "tokens", "why"),
    [
        ((TOKEN, TOKEN, LAST, ...), 2, "length"),
        ((STOPPED, ...), 1, "stop"),
        ((TOKEN, TOKEN), 2, "length"),
        ((TOKEN, TOKEN, RuntimeError("gone")), 2, "length"),
    ],
)
def test_nobody_goes_on_with_an_answer_that_has_all_its_tokens(chunks: tuple[Any, ...], tokens: int, why: str) -> None:
    """Its worker may fall silent or break off in place of its end."""

    async def run() -> None:
        stand = Stand(FixedRouter("w0", "w1"), **{Role.PREFILL: (PREFILLED, LAST), Role.DECODE: chunks})
        answer = await asyncio.wait_for(stand.ask(), 5)
        assert sum(len(chunk["token_ids"]) for chunk in answer) == tokens
        assert [chunk["finish_reason"] for chunk in answer if "finish_reason" in chunk] == [why]
        assert stand.served(Role.DECODE).total() == 1
        assert "resumed" not in stand.component.metrics.faults

    asyncio.run(run())


class Prompt(list[int]):
    """A prompt that a weak reference may point to."""


def test_a_request_that_has_ended_waits_for_no_garbage_collection() -> None:
    """Python collects once in hundreds of requests, and each has some ten KiB of token ids."""

    async def run() -> None:
        stand = Stand(FixedRouter("w0", "w1"))
        prompt = Prompt(range(40))
        left = weakref.ref(prompt)
        await stand.ask(token_ids=prompt)
        for registry in stand.registries.values():
            registry.sent.clear()
        del prompt
        await asyncio.sleep(0)
        assert left() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_router_and_flow_see_what_a_request_asks_for_itself() -> None:
    router = RecordingRouter()
    asks = {"pdplugins-ttft-ms": "700", "tenant": "gold", "pdplugins-priority": "1"}

    async def run() -> None:
        stand = Stand(router, terms={"most_priority": 2, "ttft_s": [0.5, 10], "tenant_header": "X-Tenant"})
        await stand.ask(Leg(**asks))
        await stand.ask(Leg(), routing={"priority": 9})
        await stand.ask(Leg())

    asyncio.run(run())
    own, urgent, plain = (asked.request.terms for asked in router.asked)
    assert own is not None
    assert own.tenant is not None
    assert (own.priority, own.ttft_s) == (1, 0.7)
    assert urgent == Terms(priority=2)
    assert plain is None


@pytest.mark.parametrize("silent", list(Role))
def test_a_client_that_leaves_ends_its_request_and_its_legs(silent: Role) -> None:
    async def run() -> None:
        stand = Stand(FixedRouter("w0", "w1"), **{silent: (TOKEN | PREFILLED, ...)})
        context = Leg()
        asking = asyncio.create_task(stand.ask(context))
        while not stand.served(silent):
            await asyncio.sleep(0)
        context.leave()
        await asyncio.wait_for(asking, 10)
        assert context.legs[-1].stopped
        assert not stand.component.admission.requests
        assert 'requests_total{outcome="cancelled"} 1.0' in stand.component.exposition()

    asyncio.run(run())


def test_a_request_that_no_worker_takes_is_an_error_of_its_status() -> None:
    pytest.importorskip("dynamo.llm")
    bad = {"token_ids": [], "stop_conditions": {}}

    async def run() -> None:
        stand = Stand(FixedRouter("w0", "w1"))
        with pytest.raises(Exception, match="HTTP 400: the request has no token ids"):
            [chunk async for chunk in stand.component.generate(bad, Leg())]
        stand.component.admission.close()
        with pytest.raises(Exception, match="HTTP 503"):
            await stand.ask()

    asyncio.run(run())


def test_a_stop_finishes_what_is_in_flight_or_cuts_it_in_time() -> None:
    pytest.importorskip("dynamo.llm")

    async def run() -> None:
        stand = Stand(FixedRouter("w0", "w1"), **{Role.DECODE: (TOKEN, ...)})
        asking = asyncio.create_task(stand.ask())
        while not stand.served(Role.DECODE):
            await asyncio.sleep(0)
        await stand.component.stop(1.1)
        with pytest.raises(Exception, match="HTTP 504"):
            await asking
        assert not stand.component.admission.requests

    asyncio.run(run())
