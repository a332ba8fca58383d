"""Every router plugin places requests on the gateway's own views; sessions keep their history and their worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pdplugins.gateway.names import hashed
from pdplugins.types import Placement
from tests.gateway.fake import answer_of, settled, text_of, tokenize
from tests.gateway.rig import PATIENT, PROMPT, Fixed, ask, config, fast, stand

ROUTERS: dict[str, dict[str, Any]] = {
    "ampd": {},
    "arrow": {},
    "dopd": {"local_tokens": 20},
    "dynaserve": {"pairs": "any", "split": "balanced", "underused": 0, "least_tokens": 1, "margin_tokens": 0},
    "least-loaded": {},
    "round-robin": {},
    "random": {},
    "power-of-two": {},
    "cache-aware": {},
}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("dual", [True, False])
def test_every_router_serves_a_mixed_load_with_the_right_tokens(name: str, dual: bool) -> None:
    async def run() -> None:
        modes = ("dual",) * 4 if dual else ("prefill", "prefill", "decode", "decode")
        cfg = config({"name": name, **ROUTERS[name]}, dual=dual)
        async with stand(*modes, cfg=cfg, settings=PATIENT, token_s=0.0005) as it:

            async def one(number: int) -> None:
                prompt = [number, *range(10 + 40 * (number % 5))]
                body = ask(prompt, 6, session_id=f"s{number % 4}")
                body["sampling_params"]["ignore_eos"] = number % 2 == 0
                if number % 3:
                    got = (await it.stream("/generate", body))[-1]
                else:
                    status, got = await it.post("/generate", body)
                    assert status == 200, got
                assert got["output_ids"] == answer_of(prompt, 6)

            await asyncio.gather(*(one(number) for number in range(24)))
            assert (
                it.faults["router_policy_error"]
                == it.faults["worker_failed"]
                == it.faults["router_unknown_worker"]
                == 0
            )
            assert await settled(it.idle)

    asyncio.run(run())


def test_dynaserve_splits_on_the_gateway() -> None:
    async def run() -> None:
        router = {"name": "dynaserve", "underused": 0}
        async with stand("dual", "dual", cfg=config(router)) as it:
            for number in range(6):
                prompt = [number] * 900
                assert (await it.post("/generate", ask(prompt, 200)))[1]["output_ids"] == answer_of(prompt, 200)
            async with it.client.get(it.gateway.admin_url + "/metrics") as response:
                text = await response.text()
            assert 'pdplugins_gateway_primitives_total{primitive="pair"}' in text

    asyncio.run(run())


class Early(Fixed):
    """A router that names the second worker when it is asked, and notes in which order it hears what."""

    def __init__(self) -> None:
        super().__init__()
        self.second = None
        self.heard: list[str] = []

    def bind_early(self, request: Any, placement: Placement, workers: Sequence[Any], now_s: float) -> Placement:
        self.heard.append("bound")
        return Placement(placement.first, workers[1].id, placement.split)

    def on_prefilled(self, request: Any, now_s: float) -> None:
        self.heard.append("prefilled")

    def on_ended(self, request: Any, outcome: Any) -> None:
        self.heard.append(str(outcome.ending))


@pytest.mark.parametrize("stream", [True, False])
def test_a_router_that_binds_early_hears_when_the_prompt_is_computed(stream: bool) -> None:
    async def run() -> None:
        async with stand("prefill", "decode", settings=PATIENT, token_s=0.02) as it:
            router = it.route(Early())
            if stream:
                assert (await it.stream("/generate", ask()))[-1]["output_ids"] == answer_of(PROMPT, 9)
            else:
                assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert await settled(lambda: len(router.heard) == 3)
            assert router.heard == ["bound", "prefilled", "finished"]

    asyncio.run(run())


def test_arrow_shows_its_pools() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", cfg=config("arrow")) as it:
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            async with it.client.get(it.gateway.admin_url + "/metrics") as response:
                text = await response.text()
            assert 'pdplugins_gateway_elastic_pool{role="decode"} 2.0' in text

    asyncio.run(run())


@pytest.mark.parametrize("by", ["header", "session_id", "user"])
def test_rounds_of_a_session_know_their_history_and_their_worker(by: str) -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            named: dict[str, Any] = {} if by == "header" else {by: "chat-1"}
            headers = {"x-session-id": "chat-1"} if by == "header" else {}
            prompt = PROMPT
            for _ in range(3):
                status, answer = await it.post("/generate", ask(prompt, **named), headers=headers)
                assert status == 200
                prompt = prompt + answer["output_ids"] + [7, 8, 9]
            requests = router.requests
            assert [request.session for request in requests] == [hashed("chat-1")] * 3
            assert [request.bound_worker for request in requests] == [None] + [it.workers[1].id] * 2
            assert [request.history_tokens for request in requests] == [0, 69, 81]
            await it.post("/generate", ask([1, 2, 3], **named), headers=headers)
            assert router.requests[-1].history_tokens == 2

    asyncio.run(run())


@pytest.mark.parametrize("transfer", [True, False])
def test_a_prefill_worker_gets_the_history_that_the_decode_worker_has(transfer: bool) -> None:
    """AMPD's KV read-back: what the decode worker generated is not computed again elsewhere."""

    async def run() -> None:
        async with stand("dual", "dual", settings=fast(transfer_history=transfer)) as it:
            it.route(Fixed())
            answer = (await it.post("/generate", ask(count=20, session_id="s")))[1]
            prompt = PROMPT + answer["output_ids"] + [7] * 10
            again = (await it.post("/generate", ask(prompt, session_id="s")))[1]
            assert again["output_ids"] == answer_of(prompt, 9)
            assert it.workers[0].cached[-1] == (80 if transfer else 61)
            assert it.workers[0].served["decode"] == transfer

    asyncio.run(run())


def test_prefix_blocks_and_engine_reports_reach_the_router() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            it.workers[0].loads = {"num_waiting_reqs": 5, "num_waiting_uncached_tokens": 700, "num_running_reqs": 2}
            view = it.gateway.backends.ready[0]
            assert await settled(lambda: view.load.queued_requests == 5)
            assert (view.load.queued_tokens, view.load.running_requests) == (700, 2)
            assert view.kv_capacity_tokens == 100_000
            await it.post("/generate", ask(list(range(1100)), 1))
            blocks = router.requests[0].blocks
            assert len(blocks) == 2
            assert all(block in worker.cached_blocks for block in blocks for worker in it.gateway.backends.ready)
            await it.post("/generate", ask(list(range(600)) + [1] * 600, 1))
            assert router.requests[1].blocks[0] == blocks[0]
            assert router.requests[1].blocks[1] != blocks[1]

    asyncio.run(run())


def test_recent_times_are_those_of_the_last_seconds() -> None:
    async def run() -> None:
        async with stand("dual", "dual", token_s=0.02) as it:
            it.route(Fixed())
            began_s = time.monotonic()
            request = asyncio.create_task(it.stream("/generate", ask(count=20)))
            views = it.gateway.backends.ready
            assert await settled(lambda: views[1].load.recent_tbt_s is not None)
            assert views[1].load.running_tokens > len(PROMPT)
            await request
            assert views[0].load.recent_ttft_s is not None
            assert 0 < views[0].load.recent_ttft_s < time.monotonic() - began_s
            assert views[1].load.recent_tbt_s is None

    asyncio.run(run())


def test_a_whole_answer_says_nothing_of_the_time_to_its_first_token() -> None:
    """It comes with the last one, so its worker would look slow to all routers."""

    async def run() -> None:
        async with stand("unified", token_s=0.01) as it:
            await it.post("/generate", ask(count=20))
            (view,) = it.gateway.backends.ready
            assert view.load.recent_ttft_s is None
            await it.stream("/generate", ask(count=20))
            assert 0 < view.load.recent_ttft_s < 0.2

    asyncio.run(run())


def test_a_worker_that_was_lost_has_no_history() -> None:
    """It may have started anew, and then its KV cache is empty."""

    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            _, answer = await it.post("/generate", ask(session_id="chat"))
            prompt = PROMPT + answer["output_ids"] + [7]
            decodes = it.gateway.backends.all[1]
            it.gateway.backends.lost(decodes, "a test")
            it.gateway.backends.came(decodes)
            await it.post("/generate", ask(prompt, session_id="chat"))
            assert [(one.bound_worker, one.history_tokens) for one in router.requests] == [(None, 0)] * 2
            session = it.gateway.serving.sessions.find(hashed("chat"))
            assert session is not None
            assert session.bound_worker == decodes.id

    asyncio.run(run())


def test_lengths_of_text_are_learned_from_answers() -> None:
    async def run() -> None:
        async with stand("dual", "dual") as it:
            router = it.route(Fixed())
            text = "abcdefgh" * 50
            for _ in range(60):
                answer = (await it.post("/generate", ask(text)))[1]
            assert answer["text"] == text_of(answer_of(tokenize(text), 9))
            assert router.requests[0].prompt_tokens == 100
            assert router.requests[-1].prompt_tokens == pytest.approx(400, rel=0.02)

    asyncio.run(run())
