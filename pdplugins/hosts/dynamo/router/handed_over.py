"""Legs of engines whose worker that prefills says in the end where the KV cache is, as Dynamo's mocker does.

It answers with ``disaggregated_params``; the one that decodes gets them and reads the KV cache. So who decodes may be
decided once prefill is done. A worker that does both phases serves a request alone in the same way, with itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from pdplugins.contracts.workers import Role
from pdplugins.gateway.engine import Work
from pdplugins.gateway.errors import WorkerFailedError
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.legs import Answer, Legs
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
        with self._decoding(decode, work) as answer:
            if prefill.id not in work.call.prefilled:
                await self.warm(prefill, work)
            handed = {"disaggregated_params": work.call.prefilled.pop(prefill.id), "prompt_tokens_details": None}
            async with self._chunks(decode, Role.DECODE, {**work.body, "prefill_result": handed}, work) as chunks:
                answer.begins(await self._first(decode, chunks), chunks)
                yield answer

    async def push(
        self, source: DynamoWorker, target: DynamoWorker, ids: Sequence[int], work: Work[PreprocessedCall]
    ) -> None:
        """Never called: no worker says that it splits."""
        raise WorkerFailedError(target.id, "Dynamo's engines do not go on from a part of a prompt")

    async def warm(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> None:
        """Prefill, and keep what the worker that will decode needs."""
        body = work.body if work.body is not work.call.body else work.call.prefill_only()
        if body["stop_conditions"].get("max_tokens") != 1:  # the rest of an answer that another worker began
            body = {**body, "stop_conditions": {**body["stop_conditions"], "max_tokens": 1}}
        with self._prefilling(worker, work):
            handed = await self._prefilled(worker, body, work, "disaggregated_params")
            if handed is None:
                raise WorkerFailedError(worker.id, "it prefilled, and did not say where the KV cache is")
            work.call.prefilled[worker.id] = handed
