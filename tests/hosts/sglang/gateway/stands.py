"""A gateway over real servers in one process with the test, and a client of both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from benchmarks.rig.servers import Server
from pdplugins.config import Config
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import WorkerOption
from pdplugins.limits import GatewayConfig
from pdplugins.types import Placement
from tests.gateway.rig import config
from tests.hosts.sglang.paths import GREEDY, connections
from tests.hosts.sglang.setups import Bench

SETTINGS = GatewayConfig(timeout_s=300, first_token_s=120, silence_s=120, rest_s=1, poll_s=0.2, drain_s=5)
COUNT = 12
"""Output tokens of a request."""


class Told:
    """A router that finds each placement under the name of its request."""

    def __init__(self) -> None:
        self.placements: dict[str, Placement] = {}
        self.later: dict[str, str] = {}

    def on_arrival(self, request: Any, workers: Any, now_s: float) -> Placement:
        return self.placements[request.id]

    def on_prefill_done(self, request: Any, placement: Placement, workers: Any, now_s: float) -> Placement:
        return replace(placement, second=self.later[request.id])


@dataclass
class Stand:
    """A gateway over real servers, and a client."""

    gateway: Gateway
    bench: Bench
    client: aiohttp.ClientSession
    told: Told

    @property
    def ids(self) -> tuple[str, str]:
        return f"127.0.0.1:{self.bench.a.port}", f"127.0.0.1:{self.bench.b.port}"

    async def unified(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.client.post(self.bench.unified.url + path, json=body) as answer:
            return await answer.json()

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer through the gateway; of a stream its last event, with the text of all."""
        async with self.client.post(self.gateway.url + path, json=body) as answer:
            data = await answer.read()
            assert answer.status == 200, data
            if not body.get("stream"):
                return await answer.json()
        return last_event(data)

    async def idle(self) -> bool:
        """Whether no request is left on any server."""
        for server in (self.bench.a, self.bench.b):
            async with self.client.get(server.url + "/v1/loads") as answer:
                loads = (await answer.json())["loads"]
            if any(load["num_running_reqs"] or load["num_waiting_reqs"] for load in loads):
                return False
        return True


def last_event(data: bytes) -> dict[str, Any]:
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b""), data[-300:]
    answer: dict[str, Any] = json.loads(events[-1].removeprefix(b"data: "))
    return answer


@asynccontextmanager
async def stand(bench: Bench, cfg: Config | None = None, *more: Server) -> AsyncIterator[Stand]:
    workers = [WorkerOption.parse(server.url) for server in (*bench.pair, *more)]
    gateway = Gateway((cfg or config()).model_copy(update={"gateway": SETTINGS}), workers)
    told = Told()
    if cfg is None:
        gateway.routing.use(told)
    await gateway.start()
    try:
        async with connections(SETTINGS.timeout_s) as client:
            yield Stand(gateway, bench, client, told)
    finally:
        await gateway.stop()


def ask(ids: list[int], count: int = COUNT, sampling: Mapping[str, Any] = GREEDY, **more: Any) -> dict[str, Any]:
    return {"input_ids": ids, "sampling_params": {"max_new_tokens": count, "ignore_eos": True, **sampling}, **more}
