"""Legs of engines that move the KV cache while both workers have the request, as SGLang's do.

``bootstrap_info`` ties the two legs of a pair together: the address of the worker that prefills, and a room there. A
worker that does both phases reads its role for the request from it: its own address means that it prefills, that of
another one that it decodes, and `LOCAL_HOST` that it does everything.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from pdplugins.contracts.workers import Role
from pdplugins.gateway.engine import Work
from pdplugins.gateway.errors import WorkerFailedError
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.legs import Answer, Legs
from pdplugins.hosts.dynamo.router.workers import DynamoWorker
from pdplugins.hosts.sglang.roles import LOCAL_HOST

MOST_ROOMS = 2**62


class Bootstrapped(Legs):
    """A `pdplugins.gateway.engine.Executor` of such workers."""

    @asynccontextmanager
    async def local(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> AsyncIterator[Answer]:
        """Let one worker do both phases."""
        async with AsyncExitStack() as leg:
            with self._prefilling(worker, work):
                body = _tied(work.body, (LOCAL_HOST, 1))
                chunks = await leg.enter_async_context(self._chunks(worker, Role.DECODE, body, work))
                first = await self._first(worker, chunks)
            with self._decoding(worker, work) as answer:
                answer.begins(first, chunks)
                yield answer

    @asynccontextmanager
    async def pair(
        self, prefill: DynamoWorker, decode: DynamoWorker, work: Work[PreprocessedCall]
    ) -> AsyncIterator[Answer]:
        """Prefill on one worker and decode on the other one, which gets the KV cache."""
        body = _tied(work.body, address_of(prefill))
        with self._decoding(decode, work) as answer:  # it reserves KV cache for the prompt from now on
            aside = asyncio.create_task(self._prefill(prefill, body, work))
            self._in_background(aside)
            try:
                async with self._chunks(decode, Role.DECODE, body, work) as chunks:
                    answer.begins(await self._first_of_pair(aside, decode, chunks), chunks)
                    yield answer
            except BaseException as error:
                aside.cancel()
                await asyncio.gather(aside, return_exceptions=True)
                if isinstance(error, WorkerFailedError):
                    error.of_pair(prefill.id, decode.id)
                raise

    async def push(
        self, source: DynamoWorker, target: DynamoWorker, ids: Sequence[int], work: Work[PreprocessedCall]
    ) -> None:
        """Compute the KV cache of `ids` on `source` and leave it in the prefix cache of `target`."""
        new = max(len(ids) - (work.prompt_tokens - work.new_tokens), 0)
        body = work.call.prefill_only() | {"token_ids": list(ids)}
        async with self.pair(source, target, replace(work, body=body, prompt_tokens=len(ids), new_tokens=new)) as one:
            async for _ in one:
                pass

    async def warm(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> None:
        """Compute the KV cache of a prompt on a worker, for a later pair or for itself; its one token is not used."""
        await self._prefill(worker, _tied(work.body, (LOCAL_HOST, 1)), work)

    async def _first_of_pair(
        self, aside: asyncio.Task[None], decode: DynamoWorker, chunks: AsyncIterator[Any]
    ) -> dict[str, Any]:
        """Return the first chunk of a pair, or fail as soon as one of its workers does."""
        first = asyncio.create_task(self._first(decode, chunks))
        try:
            await asyncio.wait({aside, first}, return_when=asyncio.FIRST_COMPLETED)
            if aside.done() and not first.done():
                aside.result()
            return await first
        finally:
            first.cancel()

    async def _prefill(self, worker: DynamoWorker, body: dict[str, Any], work: Work[PreprocessedCall]) -> None:
        """Let a worker compute a prompt and one token."""
        body = body | {"stop_conditions": {**(body.get("stop_conditions") or {}), "max_tokens": 1}}
        with self._prefilling(worker, work):
            await self._prefilled(worker, body, work, "finish_reason")


def address_of(worker: DynamoWorker) -> tuple[str, int]:
    """Return where others arrange transfers of KV cache with `worker`. Raises WorkerFailedError: it has not said it."""
    if worker.bootstrap is None:
        raise WorkerFailedError(worker.id, "its card has no bootstrap address")
    return worker.bootstrap


def _tied(body: dict[str, Any], address: tuple[str, int]) -> dict[str, Any]:
    """Return a request with the address of the worker that prefills it, and a new room there."""
    host, port = address
    room = secrets.randbelow(MOST_ROOMS)
    return body | {"bootstrap_info": {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}}
