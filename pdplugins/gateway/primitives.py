"""The three things that SGLang servers can do for one request: a pair, the push of a prefix, all of it on one server.

Each one keeps the books of the workers that it uses, and ends its legs with the request: one that has not come to its
end is closed and aborted on its server.

SGLang aborts every request whose name begins with the one it is told. So no leg has the client's name for the request,
or one made from it: each has a name of its own, all of one length.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from pdplugins.gateway.engines.sglang import protocol
from pdplugins.gateway.errors import RefusedError, WorkerFailedError
from pdplugins.gateway.fleet import Worker
from pdplugins.gateway.settings import GatewaySettings
from pdplugins.gateway.upstream import Answer, Upstream


@dataclass(frozen=True, slots=True)
class Work:
    """One request as a worker gets it, but for the fields that tie its legs together."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    stream: bool
    batch: int | None
    prompt_tokens: int
    new_tokens: int
    """Prompt tokens that have to be computed; the others are cached."""
    arrived_s: float
    logprobs: bool = False
    """Whether the client wants logprobs: those of the prompt come from the worker that prefills."""


class Primitives:
    """Pair, push and local, over the connections of `upstream`."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings) -> None:
        self._upstream = upstream
        self._first_token_s = settings.first_token_s

    @asynccontextmanager
    async def local(self, worker: Worker, work: Work) -> AsyncIterator[Answer]:
        """Let one worker do all of it."""
        load = worker.view.load
        rid = secrets.token_hex(16)
        body = protocol.splice(work.body, {"rid": rid})
        took_s: float | None = None
        load.prefill_starts(work.new_tokens)
        try:
            answer = await self._begin(worker, work, body, rid)
            took_s = monotonic() - work.arrived_s
        finally:
            load.prefill_ends(work.new_tokens, took_s)
        load.decode_starts(work.prompt_tokens)
        try:
            yield answer
        finally:
            load.decode_ends(work.prompt_tokens + answer.tokens)
            self._upstream.end(answer)

    @asynccontextmanager
    async def pair(self, prefill: Worker, decode: Worker, work: Work) -> AsyncIterator[Answer]:
        """Prefill on one worker and decode on another, which gets the KV cache: the same body to both, at once."""
        room = secrets.randbelow(protocol.MAX_ROOM)
        fields = protocol.bootstrap(prefill.host, prefill.bootstrap_port, room, work.batch)
        rid = secrets.token_hex(16)
        body = protocol.splice(work.body, {**fields, "rid": rid})
        load = decode.view.load
        load.decode_starts(work.prompt_tokens)  # from now on: it keeps room for the context
        aside = asyncio.create_task(self._prefill(prefill, work, body, rid))
        first = asyncio.create_task(self._begin(decode, work, body, rid))
        try:
            answer = await self._begun(prefill, decode, aside, first, logprobs=work.logprobs)
            yield answer
        except BaseException:
            aside.cancel()
            first.cancel()
            await asyncio.gather(aside, first, return_exceptions=True)
            raise
        else:
            if not _succeeded(aside):  # a decode worker may say its last token before the other one says it is done
                self._upstream.background(_ended(aside))
        finally:  # also when this is cancelled twice
            tokens = 0
            if _succeeded(first):
                tokens = first.result().tokens
                self._upstream.end(first.result())
            load.decode_ends(work.prompt_tokens + tokens)

    async def push(
        self, source: Worker, target: Worker, ids: Sequence[int], work: Work, like: Mapping[str, Any]
    ) -> None:
        """Compute the KV cache of `ids` on `source` and leave it in the prefix cache of `target`."""
        body = protocol.prefix_body(ids, like)
        new = max(len(ids) - (work.prompt_tokens - work.new_tokens), 0)
        prefix = replace(work, path=protocol.GENERATE, body=body, stream=False, batch=None, logprobs=False)
        prefix = replace(prefix, prompt_tokens=len(ids), new_tokens=new)
        async with self.pair(source, target, prefix):
            pass

    async def warm(self, worker: Worker, work: Work) -> None:
        """Compute the KV cache of a prompt on a worker, for a later pair or for itself; its one token is not used."""
        rid = secrets.token_hex(16)
        await self._prefill(worker, work, protocol.splice(work.body, {"rid": rid}), rid)

    @staticmethod
    async def _begun(
        prefill: Worker, decode: Worker, aside: asyncio.Task[bytes], first: asyncio.Task[Answer], *, logprobs: bool
    ) -> Answer:
        """Return the answer of a pair once it has begun, or fail as soon as one of its workers does."""
        try:
            await asyncio.wait({aside, first}, return_when=asyncio.FIRST_COMPLETED)
            if aside.done():
                aside.result()
            answer = await first
            if logprobs or not answer.stream:
                answer.prefill_reply = await aside
        except WorkerFailedError as error:
            error.of_pair(prefill.id, decode.id)
            raise
        return answer

    # --- legs ------------------------------------------------------------------------------------------------------

    async def _begin(self, worker: Worker, work: Work, body: bytes, rid: str) -> Answer:
        """Return the answer of a worker once it has begun; a whole answer may take as long as the request."""
        response = None
        try:
            async with worker.awaited(self._first_token_s if work.stream else None):
                response = await self._upstream.post(worker, work.path, body, work.headers, stream=work.stream)
                return await self._upstream.begin(worker, response, rid)
        except RefusedError:
            raise
        except BaseException as error:
            self._upstream.drop(worker, rid, response)
            if isinstance(error, TimeoutError):
                raise _silence(worker, "token", self._first_token_s) from None
            raise

    async def _prefill(self, worker: Worker, work: Work, body: bytes, rid: str) -> bytes:
        """Return the reply of a worker that prefills: it is done, and in a pair the KV cache has moved."""
        load = worker.view.load
        took_s: float | None = None
        load.prefill_starts(work.new_tokens)
        try:
            async with worker.awaited(self._first_token_s):
                reply = await self._upstream.reply(worker, work.path, body, work.headers)
            took_s = monotonic() - work.arrived_s
        except RefusedError:
            raise
        except BaseException as error:
            self._upstream.drop(worker, rid, None)
            if isinstance(error, TimeoutError):
                raise _silence(worker, "prefill", self._first_token_s) from None
            raise
        else:
            return reply
        finally:
            load.prefill_ends(work.new_tokens, took_s)


def _silence(worker: Worker, what: str, seconds: float) -> WorkerFailedError:
    why = f"no {what} for {seconds:g} s" if worker.alive else f"no {what}, and it does not say its load"
    return WorkerFailedError(worker.id, why, silent=True)


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _ended(task: asyncio.Task[bytes]) -> None:
    """Wait for a leg that no answer waits for any more; it has its own deadline."""
    await asyncio.gather(task, return_exceptions=True)
