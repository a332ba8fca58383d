"""What Dynamo's workers do for one request: prefill it, and decode what has been prefilled.

What one worker does for a request is a leg. `handed_over` and `bootstrapped` say which legs a request is made of.

Each leg has a context of its own, so that it can be stopped without the request: it is stopped whenever the request no
longer needs it, be it that the client left, another worker failed, or it took too long.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Any

from pdplugins.contracts.workers import Role
from pdplugins.errors import one_line
from pdplugins.gateway.engine import Work
from pdplugins.gateway.errors import RefusedError, WorkerFailedError
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.relay import Answers, Relay
from pdplugins.hosts.dynamo.router.workers import DynamoWorker
from pdplugins.limits import GatewayConfig

GONE = ("CannotConnect", "Connection refused")
"""How Dynamo begins its message when nobody serves where a worker did."""
TAIL_S = 1.0
"""How long an answer that is whole may stay open: its last chunk may be followed by one that counts its tokens."""
REFUSED = ("InvalidArgument", "request rejected")
"""How a worker begins its message when any worker would refuse the request."""


class Answer:
    """The answer of one worker. The books are kept as its tokens come.

    :param silence_s: longest time between two chunks.
    """

    def __init__(self, worker: DynamoWorker, silence_s: float) -> None:
        self.worker = worker
        self.tokens = 0
        self.refused: int | None = None
        """None: Dynamo's workers refuse before their answer begins."""
        self._silence_s = silence_s

    def begins(self, first: dict[str, Any], chunks: AsyncIterator[Any]) -> None:
        """Take in its first chunk, which has come, and where the others will come from."""
        self._first = first
        self._chunks = chunks
        self._last_s = monotonic()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Yield its chunks. Raises WorkerFailedError when the worker fails, or its answer ends before its end."""
        load, whole = self.worker.view.load, False
        chunk: dict[str, Any] | None = self._first
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._silence_s) as silence:
                while chunk is not None:
                    count = len(chunk["token_ids"])
                    if count:
                        now_s = monotonic()
                        load.tokens(count, (now_s - self._last_s) / count if self.tokens else None, now_s)
                        self.tokens += count
                        self._last_s = now_s
                    whole = whole or chunk.get("finish_reason") is not None
                    yield chunk
                    silence.reschedule(loop.time() + (min(self._silence_s, TAIL_S) if whole else self._silence_s))
                    chunk = await next_of(self.worker, self._chunks, whole=whole)
        except TimeoutError:
            if whole:
                return
            raise WorkerFailedError(self.worker.id, f"no token for {self._silence_s:g} s", silent=True) from None
        if not whole:
            raise WorkerFailedError(self.worker.id, "its answer broke off")


class Legs:
    """What every `pdplugins.gateway.engine.Executor` of Dynamo's workers does alike."""

    def __init__(self, settings: GatewayConfig) -> None:
        self._settings = settings
        self._background: set[asyncio.Task[None]] = set()

    # --- requests and answers ------------------------------------------------------------------------------------

    async def prompt_ids(self, worker: DynamoWorker, call: PreprocessedCall) -> list[int]:
        """Return the prompt, which comes as token ids."""
        return call.prompt

    def relay(self, call: PreprocessedCall, client: Answers, on_tokens: Callable[[int], None]) -> Relay:
        """Return the relay that passes the answer of `call` on."""
        return Relay(client, on_tokens, call.max_tokens if call.one_answer else None)

    def splittable(
        self, call: PreprocessedCall, client: Answers, first: DynamoWorker
    ) -> tuple[PreprocessedCall, Answers]:
        """Return the request as it is: its answer tells token ids."""
        return call, client

    # --- what legs are made of -------------------------------------------------------------------------------------

    def _in_background(self, task: asyncio.Task[None]) -> None:
        """Let a leg come to its end by itself. It has its own deadline, and nobody asks how it ended."""

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if not task.cancelled():
                task.exception()

        self._background.add(task)
        task.add_done_callback(ended)

    async def close(self) -> None:
        """End what goes on in the background."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    @asynccontextmanager
    async def _chunks(
        self, worker: DynamoWorker, phase: Role, body: dict[str, Any], work: Work[PreprocessedCall]
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Open a leg, which is stopped unless it has come to its end. Raises WorkerFailedError."""
        context = work.call.context.detached(f"{work.call.rid}-{secrets.token_hex(4)}")
        client, ended = worker.clients[phase], False
        try:
            try:
                with worker.waits.within(self._settings.first_token_s):
                    chunks = await client.direct(body, worker.instance, annotated=False, context=context)
            except TimeoutError:
                raise self._silent(worker) from None
            except Exception as error:
                raise failure(worker, named(error)) from None
            with worker.leg():
                yield chunks
            ended = True
        finally:
            if not ended:
                context.stop_generating()

    async def _first(self, worker: DynamoWorker, chunks: AsyncIterator[Any]) -> dict[str, Any]:
        """Return the first chunk. Raises WorkerFailedError."""
        chunk = await self._next(worker, chunks, whole=False)
        if chunk is None:
            raise WorkerFailedError(worker.id, "it ended its answer before the first token")
        return chunk

    async def _prefilled(
        self, worker: DynamoWorker, body: dict[str, Any], work: Work[PreprocessedCall], last: str
    ) -> object:
        """Let a worker prefill, and read its answer to the end: a worker that only prefills says no token.

        Returns what it says in the field `last`, with which its answer is whole; None where it never says it.
        """
        said: object = None
        async with self._chunks(worker, Role.PREFILL, body, work) as chunks:
            chunk: dict[str, Any] | None = await self._first(worker, chunks)
            while chunk is not None:
                said = chunk.get(last) or said
                chunk = await self._next(worker, chunks, whole=said is not None)
        return said

    async def _next(self, worker: DynamoWorker, chunks: AsyncIterator[Any], *, whole: bool) -> dict[str, Any] | None:
        """Return the next chunk within the time of a first token; None at the end. Raises as `next_of` does."""
        try:
            with worker.waits.within(self._settings.first_token_s):
                return await next_of(worker, chunks, whole=whole)
        except TimeoutError:
            raise self._silent(worker) from None

    # --- the books of a worker ---------------------------------------------------------------------------------------

    @contextmanager
    def _prefilling(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> Iterator[None]:
        """Enter a prefill in the books while it takes place. If it succeeds, note how long, and say that it is done."""
        load, history = worker.view.load, work.prompt_tokens - work.new_tokens
        took_s: float | None = None
        worker.enters()
        load.prefill_starts(work.new_tokens, history)
        try:
            yield
            took_s = monotonic() - work.arrived_s
            work.computed()
        finally:
            load.prefill_ends(work.new_tokens, took_s, history)
            worker.leaves()

    @contextmanager
    def _decoding(self, worker: DynamoWorker, work: Work[PreprocessedCall]) -> Iterator[Answer]:
        """Enter a decode in the books, with its answer, which is still to begin, for as long as it takes."""
        load, answer = worker.view.load, Answer(worker, self._settings.silence_s)
        worker.enters()
        load.decode_starts(work.prompt_tokens)
        try:
            yield answer
        finally:
            load.decode_ends(work.prompt_tokens + answer.tokens)
            worker.leaves()

    def _silent(self, worker: DynamoWorker) -> WorkerFailedError:
        why = f"no token for {self._settings.first_token_s:g} s" if worker.alive else "no token, and it is gone"
        return WorkerFailedError(worker.id, why, silent=True)


async def next_of(worker: DynamoWorker, chunks: AsyncIterator[Any], *, whole: bool) -> dict[str, Any] | None:
    """Return the next chunk; None at the end. Raises WorkerFailedError and RefusedError.

    :param whole: whether the answer is whole already: what goes wrong after that does not matter.
    """
    try:
        chunk = await anext(chunks, None)
    except Exception as error:
        if whole:
            return None
        raise failure(worker, named(error)) from None
    if chunk is None:
        return None
    if not isinstance(chunk, dict) or not isinstance(chunk.get("token_ids"), list):
        raise WorkerFailedError(worker.id, f"a chunk without token ids: {one_line(chunk)}", told=True)
    reason = chunk.get("finish_reason")
    if isinstance(reason, dict) and "error" in reason:
        raise failure(worker, str(reason["error"]), told=True)
    if reason == "cancelled":  # not by us: nobody reads an answer that we have stopped
        raise WorkerFailedError(worker.id, "it gave the request up", told=True)
    return chunk


def named(error: Exception) -> str:
    """Return an error of Dynamo's client as one text that begins with its kind, as those of workers do."""
    text = str(error)
    return text if type(error) is Exception else f"{type(error).__name__}: {text}"


def failure(worker: DynamoWorker, said: str, *, told: bool = False) -> WorkerFailedError | RefusedError:
    """Return what an error means. :param told: whether the worker said it itself."""
    text = one_line(said)
    if text.startswith(REFUSED):
        return RefusedError(400, text.encode(), "text/plain")
    return WorkerFailedError(worker.id, text, gone=text.startswith(GONE), told=told)
