"""Legs of engines whose worker that prefills says in the end where the KV cache is, as Dynamo's mocker does.

It answers with ``disaggregated_params``; the one that decodes gets them and reads the KV cache. So who decodes may be
decided once prefill is done. A worker that does both phases serves a request alone in the same way, with itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any

from pdplugins.contracts.workers import Role
from pdplugins.gateway.engine import Work
from pdplugins.gateway.errors import WorkerFailedError
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.legs import Answer, Legs, next_of
from pdplugins.hosts.dynamo.router.workers import DynamoWorker


class HandedOver(Legs):
    """A `pdplugins.gateway.engine.Executor` of such workers."""

    def local(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> AbstractAsyncContextManager[Answer]:
        """Let one worker do both phases."""
        return self.pair(worker, worker, work)

    @asynccontextmanager
    async def pair(
        self, prefill: DynamoWorker, decode: DynamoWorker, work: Work[PreprocessedCall]
    ) -> AsyncIterator[Answer]:
        """Prefill on one worker, unless it has been done, and decode on the other one."""
        load = decode.view.load
        load.decode_starts(work.prompt_tokens)
        decode.enters()
        answer: Answer | None = None
        try:
            if prefill.id not in work.call.prefilled:
                await self.warm(prefill, work)
            handed = {"disaggregated_params": work.call.prefilled.pop(prefill.id), "prompt_tokens_details": None}
            async with self._chunks(decode, Role.DECODE, {**work.body, "prefill_result": handed}, work) as chunks:
                first = await self._first(decode, chunks)
                answer = Answer(decode, chunks, first, self._settings.silence_s)
                yield answer
        finally:
            load.decode_ends(work.prompt_tokens + (answer.tokens if answer is not None else 0))
            decode.leaves()

    async def push(
        self, source: DynamoWorker, target: DynamoWorker, ids: Sequence[int], work: Work[PreprocessedCall]
    ) -> None:
        """Never called: no worker says that it splits."""
        raise WorkerFailedError(target.id, "Dynamo's engines do not go on from a part of a prompt")

    async def warm(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> None:
        """Prefill, and keep what the worker that will decode needs."""
        load, history = worker.view.load, work.prompt_tokens - work.new_tokens
        body = work.body if work.body is not work.call.body else work.call.prefill_only()
        if body["stop_conditions"].get("max_tokens") != 1:  # the rest of an answer that another worker began
            body = {**body, "stop_conditions": {**body["stop_conditions"], "max_tokens": 1}}
        took_s: float | None = None
        load.prefill_starts(work.new_tokens, history)
        worker.enters()
        try:
            async with self._chunks(worker, Role.PREFILL, body, work) as chunks:
                chunk: dict[str, Any] | None = await self._first(worker, chunks)
                handed = None
                while chunk is not None:
                    handed = chunk.get("disaggregated_params") or handed
                    async with worker.waits.within(self._settings.first_token_s):
                        chunk = await next_of(worker, chunks, whole=handed is not None)
            if handed is None:
                raise WorkerFailedError(worker.id, "it prefilled, and did not say where the KV cache is")
            work.call.prefilled[worker.id] = handed
            took_s = monotonic() - work.arrived_s
        except TimeoutError:
            raise self._silent(worker) from None
        finally:
            load.prefill_ends(work.new_tokens, took_s, history)
            worker.leaves()
