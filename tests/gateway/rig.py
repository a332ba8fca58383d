"""Gateways over fake workers, for tests."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pdplugins.config import Config, parse
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import WorkerOption
from pdplugins.gateway.discovery import Source
from pdplugins.gateway.tracing import Tracing
from pdplugins.limits import GatewayConfig
from pdplugins.types import Flow, Placement
from tests.gateway.fake import FakeWorker, Rooms

FAST = GatewayConfig(
    **{"timeout_s": 10, "first_token_s": 2, "silence_s": 1, "connect_s": 1, "rest_s": 0.2, "poll_s": 0.05},
    **{"drain_s": 1, "worker_wait_s": 0.3, "backoff_s": 0.01},
)


def fast(**changes: Any) -> GatewayConfig:
    """`FAST` with other values."""
    return GatewayConfig.model_validate({**FAST.model_dump(), **changes})


def patient(**changes: Any) -> GatewayConfig:
    """`PATIENT` with other values."""
    return GatewayConfig.model_validate({**PATIENT.model_dump(), **changes})


PATIENT = fast(timeout_s=120, first_token_s=60, silence_s=60, connect_s=30, poll_timeout_s=30)
"""For tests in which no worker fails: a busy machine must not look like a dead worker."""

JSON = {"Content-Type": "application/json"}
PROMPT = list(range(100, 160))


def ask(prompt: list[int] | str = PROMPT, count: int = 9, **more: Any) -> dict[str, Any]:
    name = "text" if isinstance(prompt, str) else "input_ids"
    return {name: prompt, "sampling_params": {"max_new_tokens": count, "temperature": 0}, **more}


def config(router: str | dict[str, Any] = "least-loaded", *, dual: bool = True, **more: Any) -> Config:
    deployment = {"profile": "h100/llama-3.1-70b-fp8", "prefill": {"tp": 2}, "decode": {"tp": 2}}
    return parse({"deployment": deployment, "router": router, "sglang": {"dual_role": dual}, **more})


class Fixed:
    """A router that does as it is told: indices of the workers, and the split."""

    def __init__(self) -> None:
        self.first, self.second, self.split = 0, 1, None
        self.later: int | None = None
        self.requests: list[Any] = []
        self.endings: list[tuple[str, str, int]] = []
        """Of each request that ended: its id, how, and its output tokens."""

    @property
    def finished(self) -> list[int]:
        """Output tokens of the requests that finished."""
        return [tokens for _, ending, tokens in self.endings if ending == "finished"]

    def on_arrival(self, request: Any, workers: Sequence[Any], now_s: float) -> Placement:
        self.requests.append(request)
        ids = [worker.id for worker in workers]
        if len(ids) == 1:
            return Placement(ids[0], ids[0], request.prompt_tokens)
        split = request.prompt_tokens if self.split is None else self.split
        second = None if self.second is None else ids[self.second % len(ids)]
        return Placement(ids[self.first % len(ids)], second, split)

    def on_prefill_done(self, request: Any, placement: Placement, workers: Sequence[Any], now_s: float) -> Placement:
        assert self.later is not None
        return Placement(placement.first, workers[self.later].id, placement.split)

    def on_ended(self, request: Any, outcome: Any) -> None:
        self.endings.append((request.id, str(outcome.ending), outcome.output_tokens))


@dataclass
class Stand:
    """One gateway, its workers and a client."""

    gateway: Gateway
    workers: list[FakeWorker]
    client: aiohttp.ClientSession

    def route(self, router: Any) -> Any:
        """Put another router in place."""
        self.gateway.policies.router = router
        self.gateway.routing.use(router)
        return router

    async def post(self, path: str, body: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
        async with self.client.post(self.gateway.url + path, json=body, **more) as answer:
            return answer.status, await answer.json(content_type=None)

    async def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All events of a stream; its end is checked."""
        async with self.client.post(self.gateway.url + path, json=body | {"stream": True}) as answer:
            data = await answer.read()
        assert answer.status == 200, data
        *events, done, rest = data.split(b"\n\n")
        assert done == b"data: [DONE]", data
        assert rest == b""
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    @property
    def faults(self) -> dict[str, int]:
        return self.gateway.metrics.faults

    def idle(self) -> bool:
        """Whether nothing of any request is left anywhere."""
        names = ("_own_queued", "_own_queued_tokens", "_own_running", "_own_running_tokens")
        loads = [worker.view.load for worker in self.gateway.backends.all]
        books = [getattr(load, name) for load in loads for name in names]
        return (
            not any(books)
            and not any(worker.running for worker in self.workers)
            and not any(worker.rooms.alone for worker in self.workers)
        )


@asynccontextmanager
async def stand(
    *modes: str, token_s: float = 0.0, incremental: bool | Sequence[bool] = False, **more: Any
) -> AsyncIterator[Stand]:
    """Workers of these modes, a gateway over them and a client; afterwards nothing may be left.

    :param incremental: whether events of a stream hold new tokens only: of all workers, or of each one.
    """
    rooms = Rooms()
    forms = [incremental] * len(modes) if isinstance(incremental, bool) else incremental
    made = enumerate(zip(modes, forms, strict=True))
    workers = [await FakeWorker(mode, rooms, 9000 + i, token_s, form).start() for i, (mode, form) in made]
    async with over(workers, **more) as it:
        yield it
    assert rooms.mismatches == []


@asynccontextmanager
async def over(
    workers: Sequence[FakeWorker],
    *,
    cfg: Config | None = None,
    settings: GatewayConfig = PATIENT,
    flow: Flow | None = None,
    decision_log: Path | None = None,
    roles: Sequence[str] = (),
    access: Access | None = None,
    trusts: ssl.SSLContext | bool = True,
    sources: Sequence[Source] = (),
    tracing: Tracing | None = None,
) -> AsyncIterator[Stand]:
    """A gateway over these workers and a client; afterwards nothing may be left, and the workers are stopped.

    :param roles: labels of the workers at start; the gateway's own where there are none.
    :param sources: where it finds workers; then it is given none.
    :param trusts: what the client checks the gateway's certificate with.
    """
    before = asyncio.all_tasks()
    labels = [f",role={role}" for role in roles] or [""] * len(workers)
    options = [WorkerOption.parse(worker.url + label) for worker, label in zip(workers, labels, strict=True)]
    cfg = (cfg or config(dual=any(worker.mode == "dual" for worker in workers))).model_copy(
        update={"gateway": settings}
    )
    given = [] if sources else options
    gateway = Gateway(cfg, given, decision_log=decision_log, access=access, sources=sources, tracing=tracing)
    gateway.policies.flow = gateway.policies.flow if flow is None else flow
    await gateway.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusts)) as client:
            yield Stand(gateway, list(workers), client)
    finally:
        await gateway.stop()
        for worker in workers:
            await worker.stop()
    await asyncio.sleep(0.01)
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left, left
