"""The three things that SGLang servers can do for one request: a pair, the push of a prefix, all of it on one server.

Each one keeps the books of the workers that it uses, and ends its legs with the request: one that has not come to its
end is closed and aborted on its server.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from pdplugins.hosts.sglang.gateway import protocol
from pdplugins.hosts.sglang.gateway.errors import RefusedError, WorkerFailedError
from pdplugins.hosts.sglang.gateway.fleet import Worker
from pdplugins.hosts.sglang.gateway.settings import GatewaySettings
from pdplugins.hosts.sglang.gateway.upstream import Answer, Upstream


@dataclass(frozen=True, slots=True)
class Work:
    """One request as a worker gets it, but for the fields that tie its legs together."""

    path: str
    body: bytes
    rid: str
    headers: Mapping[str, str]
    stream: bool
    batch: int | None
    prompt_tokens: int
    new_tokens: int
    """Prompt tokens that have to be computed; the others are cached."""
    arrived_s: float


@dataclass(slots=True)
class Leg:
    """The part of a request that a worker decodes."""

    answer: Answer | None
    """None until it has begun."""


class Primitives:
    """Pair, push and local, over the connections of `upstream`."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings) -> None:
        self._upstream = upstream
        self._first_token_s = settings.first_token_s

    @asynccontextmanager
    async def local(self, worker: Worker, work: Work) -> AsyncIterator[Answer]:
        """Let one worker do all of it."""
        load = worker.view.load
        body = protocol.splice(work.body, {"rid": work.rid})
        took_s: float | None = None
        load.prefill_starts(work.new_tokens)
        try:
            answer = await self._begin(worker, work, body)
            took_s = monotonic() - work.arrived_s
        finally:
            load.prefill_ends(work.new_tokens, took_s)
        async with self._decoding(worker, work, answer):
            yield answer

    @asynccontextmanager
    async def pair(self, prefill: Worker, decode: Worker, work: Work) -> AsyncIterator[Answer]:
        """Prefill on one worker and decode on another, which gets the KV cache: the same body to both, at once."""
        room = secrets.randbelow(protocol.MAX_ROOM)
        fields = protocol.bootstrap(prefill.host, prefill.bootstrap_port, room, work.batch)
        body = protocol.splice(work.body, {**fields, "rid": work.rid})
        aside = asyncio.create_task(self._prefill(prefill, work, body))
        first = asyncio.create_task(self._begin(decode, work, body))
        try:
            # Its context is there from now on: the decode worker keeps room for it.
            async with self._decoding(decode, work, None) as leg:
                await asyncio.wait({aside, first}, return_when=asyncio.FIRST_COMPLETED)
                if aside.done():
                    aside.result()
                leg.answer = answer = await first
                if not answer.stream:
                    answer.prefill_reply = await aside
                yield answer
        except WorkerFailedError as error:
            if not error.gone:
                error.workers = (prefill.id, decode.id)
            raise
        finally:
            aside.cancel()
            first.cancel()
            await asyncio.gather(aside, first, return_exceptions=True)

    async def push(
        self, source: Worker, target: Worker, ids: Sequence[int], work: Work, like: Mapping[str, Any]
    ) -> None:
        """Compute the KV cache of `ids` on `source` and leave it in the prefix cache of `target`."""
        rid = f"{work.rid}-push"
        body = protocol.prefix_body(ids, rid, like)
        new = max(len(ids) - (work.prompt_tokens - work.new_tokens), 0)
        prefix = replace(work, path=protocol.GENERATE, body=body, rid=rid, stream=False, batch=None)
        prefix = replace(prefix, prompt_tokens=len(ids), new_tokens=new)
        async with self.pair(source, target, prefix):
            pass

    async def warm(self, worker: Worker, work: Work) -> None:
        """Compute the KV cache of a prompt on a worker, for a later pair or for itself; its one token is not used."""
        async with self.local(worker, replace(work, rid=f"{work.rid}-warm", stream=False)):
            pass

    # --- legs ------------------------------------------------------------------------------------------------------

    async def _begin(self, worker: Worker, work: Work, body: bytes) -> Answer:
        """Return the answer of a worker once it has begun; a whole answer may take as long as the request."""
        response = None
        try:
            async with asyncio.timeout(self._first_token_s if work.stream else None):
                response = await self._upstream.post(worker, work.path, body, work.headers, stream=work.stream)
                return await self._upstream.begin(worker, response)
        except TimeoutError:
            self._upstream.drop(worker, work.rid, response)
            raise WorkerFailedError(worker.id, f"no token for {self._first_token_s:g} s") from None
        except RefusedError:
            raise
        except BaseException:
            self._upstream.drop(worker, work.rid, response)
            raise

    async def _prefill(self, worker: Worker, work: Work, body: bytes) -> bytes:
        """Return the reply of a prefill worker: its prefill is done, and the KV cache has moved."""
        load = worker.view.load
        took_s: float | None = None
        load.prefill_starts(work.new_tokens)
        try:
            async with asyncio.timeout(self._first_token_s):
                reply = await self._upstream.reply(worker, work.path, body, work.headers)
            took_s = monotonic() - work.arrived_s
        except RefusedError:
            raise
        except TimeoutError:
            self._upstream.drop(worker, work.rid, None)
            raise WorkerFailedError(worker.id, f"no prefill for {self._first_token_s:g} s") from None
        except BaseException:
            self._upstream.drop(worker, work.rid, None)
            raise
        else:
            return reply
        finally:
            load.prefill_ends(work.new_tokens, took_s)

    @asynccontextmanager
    async def _decoding(self, worker: Worker, work: Work, answer: Answer | None) -> AsyncIterator[Leg]:
        """Keep the books of a worker that decodes, and drop what it has not finished."""
        leg = Leg(answer)
        load = worker.view.load
        load.decode_starts(work.prompt_tokens)
        try:
            yield leg
        finally:
            tokens = 0 if leg.answer is None else leg.answer.tokens
            load.decode_ends(work.prompt_tokens + tokens)
            if leg.answer is not None and not leg.answer.ended:
                self._upstream.drop(worker, work.rid, leg.answer.response)
