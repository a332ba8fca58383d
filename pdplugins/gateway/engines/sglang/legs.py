"""What SGLang servers can do for one request: serve it alone, as a pair, or compute a prefix for another server.

What one server does for a request is a leg. Each leg is entered in the books of its server, and ends with the request:
a leg that has not come to its end is closed and aborted.

SGLang aborts every request whose name begins with the one it is told. So the name of each leg begins with random bytes;
a name that the client has chosen could be the beginning of another one. What the request may ask for itself stands
behind them, for the batch scheduler inside the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from pdplugins.gateway.backends import Backend
from pdplugins.gateway.engine import Work
from pdplugins.gateway.engines.sglang import protocol
from pdplugins.gateway.engines.sglang.calls import Call
from pdplugins.gateway.engines.sglang.upstream import Answer, Upstream
from pdplugins.gateway.errors import RefusedError, WorkerFailedError
from pdplugins.gateway.randomness import fresh_name, take
from pdplugins.gateway.terms import carried
from pdplugins.limits import GatewayConfig

NONE: Mapping[str, Any] = {}
LATER_S = 0.02
"""How much longer the decode worker of a pair may be silent: where both are, the one that prefills is to blame."""


class Legs:
    """Local, pair, push and warm, over the connections of `upstream`.

    Local and pair are context managers without contextlib, whose generators the event loop would keep a list of.
    """

    def __init__(self, upstream: Upstream, settings: GatewayConfig) -> None:
        self.upstream = upstream
        self._first_token_s = settings.first_token_s

    def local(self, backend: Backend, work: Work[Call]) -> Local:
        """Let one worker do all of it."""
        return Local(self, backend, work)

    def pair(self, prefill: Backend, decode: Backend, work: Work[Call]) -> Pair:
        """Prefill on one worker and decode on another, which gets the KV cache: the same body to both, at once."""
        return Pair(self, prefill, decode, work)

    async def push(self, source: Backend, target: Backend, ids: Sequence[int], work: Work[Call]) -> None:
        """Compute the KV cache of `ids` on `source` and leave it in the prefix cache of `target`."""
        fields = protocol.prefix_fields(ids, work.call.fields)
        call = Call(protocol.GENERATE, protocol.dumps(fields), fields, work.call.rid, None, work.call.headers)
        call.terms = work.call.terms
        new = max(len(ids) - (work.prompt_tokens - work.new_tokens), 0)
        async with self.pair(source, target, Work(call, call.body, len(ids), new, work.arrived_s)):
            pass

    async def warm(self, backend: Backend, work: Work[Call]) -> None:
        """Compute the KV cache of a prompt on a backend, for a later pair or for itself; its one token is not used."""
        rid = _name(work)
        await self.prefill(backend, work, _body(work, rid), rid)

    async def begin(
        self, backend: Backend, work: Work[Call], body: bytes, rid: str, aside: asyncio.Task[bytes] | None = None
    ) -> Answer:
        """Return the answer of a worker once it has begun; a whole answer may take as long as the request.

        :param aside: the other leg of a pair. If it fails meanwhile, this raises what it has raised.
        """
        call, response = work.call, None
        silent_s = self._first_token_s + (LATER_S if aside is not None else 0.0)
        try:
            with backend.waits.within(silent_s if call.stream else None) as wait:
                if aside is not None:
                    aside.add_done_callback(lambda leg: None if _succeeded(leg) else wait.end())
                response = await self.upstream.post(backend, call.path, body, call.headers, stream=call.stream)
                return await self.upstream.begin(backend, response, rid, call)
        except RefusedError:
            raise
        except BaseException as error:
            self.upstream.drop(backend, rid, response)
            if isinstance(error, TimeoutError):
                if aside is not None and aside.done():
                    aside.result()
                raise silence(backend, "token", self._first_token_s) from None
            raise

    async def prefill(self, backend: Backend, work: Work[Call], body: bytes, rid: str) -> bytes:
        """Return the reply of a worker that prefills: it is done, and in a pair the KV cache has moved."""
        load = backend.view.load
        took_s: float | None = None
        load.prefill_starts(work.new_tokens, work.prompt_tokens - work.new_tokens)
        try:
            with backend.waits.within(self._first_token_s):
                reply = await self.upstream.reply(backend, work.call.path, body, work.call.headers)
            took_s = monotonic() - work.arrived_s
            work.computed()
        except RefusedError:
            raise
        except BaseException as error:
            self.upstream.drop(backend, rid, None)
            if isinstance(error, TimeoutError):
                raise silence(backend, "prefill", self._first_token_s) from None
            raise
        else:
            return reply
        finally:
            load.prefill_ends(work.new_tokens, took_s, work.prompt_tokens - work.new_tokens)


class Local:
    """All of a request on one worker."""

    def __init__(self, legs: Legs, backend: Backend, work: Work[Call]) -> None:
        self._legs = legs
        self._load = backend.view.load
        self._backend = backend
        self._work = work

    async def __aenter__(self) -> Answer:
        work, load = self._work, self._load
        rid = _name(work)
        body = _body(work, rid)
        took_s: float | None = None
        load.prefill_starts(work.new_tokens, work.prompt_tokens - work.new_tokens)
        try:
            self._answer = answer = await self._legs.begin(self._backend, work, body, rid)
            if answer.stream:  # an answer in one piece comes with its last token
                took_s = monotonic() - work.arrived_s
        finally:
            load.prefill_ends(work.new_tokens, took_s, work.prompt_tokens - work.new_tokens)
        load.decode_starts(work.prompt_tokens)
        return answer

    async def __aexit__(self, *_: object) -> None:
        self._load.decode_ends(self._work.prompt_tokens + self._answer.tokens)
        self._legs.upstream.end(self._answer)


class Pair:
    """A request on one worker that prefills and one that decodes."""

    def __init__(self, legs: Legs, prefill: Backend, decode: Backend, work: Work[Call]) -> None:
        self._legs = legs
        self._prefill = prefill
        self._decode = decode
        self._work = work
        self._answer: Answer | None = None

    async def __aenter__(self) -> Answer:
        prefill, work = self._prefill, self._work
        # SGLang's bootstrap room: it ties the legs of a pair together.
        room = int.from_bytes(take(8)) % protocol.MAX_ROOM
        fields = protocol.bootstrap(prefill.host, prefill.bootstrap_port, room, work.call.batch)
        rid = _name(work)
        body = _body(work, rid, fields)
        self._decode.view.load.decode_starts(work.prompt_tokens)  # it reserves KV cache for the context from now on
        self._aside = asyncio.get_running_loop().create_task(self._legs.prefill(prefill, work, body, rid))
        try:
            return await self._begun(body, rid)
        except BaseException as error:
            await self._end(failed=True)
            if isinstance(error, WorkerFailedError):
                error.of_pair(prefill.id, self._decode.id)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(failed=kind is not None)

    async def _begun(self, body: bytes, rid: str) -> Answer:
        """Return the answer once it has begun, or fail as soon as one of the workers does."""
        aside, work = self._aside, self._work
        self._answer = answer = await self._legs.begin(self._decode, work, body, rid, aside)
        if aside.done():
            aside.result()
        if work.call.logprobs:
            answer.prefill_reply = await aside
        return answer

    async def _end(self, *, failed: bool) -> None:
        aside, answer, tokens = self._aside, self._answer, 0
        try:
            if failed:
                aside.cancel()
                await asyncio.gather(aside, return_exceptions=True)
            else:
                self._legs.upstream.keep(aside)  # the last token may come before the reply of the prefill worker
        finally:  # also when this is cancelled twice
            if answer is not None:
                tokens = answer.tokens
                self._legs.upstream.end(answer)
            self._decode.view.load.decode_ends(self._work.prompt_tokens + tokens)


def _name(work: Work[Call]) -> str:
    return fresh_name() + carried(work.call.terms, monotonic() - work.arrived_s)


def _body(work: Work[Call], rid: str, fields: Mapping[str, Any] = NONE) -> bytes:
    """Return the body of a leg: with its name, the priority that the request may have, and other `fields`."""
    terms = work.call.terms
    priority = {"priority": terms.priority} if terms is not None and terms.priority else NONE
    return protocol.splice(work.body, {**fields, **priority, "rid": rid})


def silence(backend: Backend, what: str, seconds: float) -> WorkerFailedError:
    """Return the failure of a worker that has not said `what` for so long, or is lost."""
    why = f"no {what} for {seconds:g} s" if backend.alive else f"no {what}, and it does not say its load"
    return WorkerFailedError(backend.id, why, silent=True)


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
