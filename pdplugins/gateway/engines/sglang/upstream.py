"""Talks to the workers: begins an answer, reads it event by event, and aborts what its request no longer needs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from http import HTTPStatus
from time import monotonic
from typing import Any

import aiohttp

from pdplugins.gateway.backends import Backend
from pdplugins.gateway.engines.sglang import protocol
from pdplugins.gateway.engines.sglang.calls import Call
from pdplugins.gateway.engines.sglang.connections import Connections, Response
from pdplugins.gateway.errors import (
    FULL,
    RefusedError,
    ShortageError,
    WorkerFailedError,
    WorkerFullError,
    refused,
    said,
    shortage,
)
from pdplugins.gateway.reading import Hold, Room, TooLongError, is_json, read_whole
from pdplugins.limits import MIB, GatewayConfig

ABORT_S = 5.0
REST_S = 1.0
"""How long a stream may take to end after its last event."""
FAILURES = (aiohttp.ClientError, OSError, TimeoutError)
LONGEST_WAIT_S = 60.0
"""A longer ``Retry-After`` of a worker is not passed on."""


class Answer:
    """The answer of one worker, of which the beginning has arrived.

    :param single: there are no other answers whose tokens come between its own.
    :param counted: each event says how many tokens there are so far.
    :param silent: what marks an event without a token, where they do not.
    """

    def __init__(
        self,
        backend: Backend,
        response: Response,
        rid: str,
        most_bytes: int,
        *,
        single: bool = True,
        counted: bool = False,
        silent: Sequence[bytes] = (),
    ) -> None:
        self.backend = backend
        self.rid = rid
        """The name of its leg, which is not the client's name of the request."""
        self.response = response
        self.content_type = response.content_type
        self.stream = self.content_type.startswith("text/event-stream")
        """Whether it comes event by event."""
        self.prefill_reply = b""
        """What the prefill worker answered, where there was another one and the client wants logprobs."""
        self.ended = not self.stream
        """Whether all of it has come."""
        self.tokens = 0
        self.refused: int | None = None
        """Status of the refusal that a stream is in place of an answer: workers have begun it with 200 by then."""
        self.most_bytes = most_bytes
        """Of all of it, or of one event of a stream."""
        self._single = single
        self._counted = counted
        self._silent = silent
        self.held_bytes = 0
        """Room that a whole answer takes until it has been written to the client."""
        self._first = b""
        self._rest = b""
        self._last_s: float | None = None
        """When the last tokens came."""

    async def begin(self, room: Room) -> None:
        """Wait for its beginning: the first events, or all of it. Raises WorkerFailedError or RefusedError.

        :param room: for whole answers. Raises AnswersTooLongError where there is none.
        """
        if self.stream:
            self._first = await self._events("the stream ended before the first token")
            return
        self._first = data = await read_all(self.backend, self.response, self.most_bytes, room)
        if not is_json(data):
            raise WorkerFailedError(self.backend.id, "an answer that is no JSON" if data else "an empty answer")
        if data.startswith(protocol.ERROR):
            refuse(self.backend, protocol.EVENT_START + data)
        room.take(len(data))
        self.held_bytes = len(data)

    async def piece(self) -> bytes:
        """Return the next whole events, or the whole answer; nothing at the end.

        Raises WorkerFailedError when the worker fails, or its stream ends before its end.
        """
        if self._first:
            piece, self._first = self._first, b""
        elif self.ended:
            return b""
        else:
            piece = await self._events("the stream broke off")
        if self.stream:
            self._count(piece)
        return piece

    async def _events(self, broken: str) -> bytes:
        """Return all whole events that come next, and keep what comes after them."""
        data = await read(self.backend, self.response)
        if not self._rest and data.endswith(protocol.EVENT_END):  # as it mostly is
            self._check(data)
            return data
        parts, size = [self._rest], len(self._rest)
        while data:
            size += len(data)
            if size > self.most_bytes:
                self.response.close()
                raise WorkerFailedError(self.backend.id, "an event that does not end")
            end = data.rfind(protocol.EVENT_END) + len(protocol.EVENT_END)
            if end < len(protocol.EVENT_END):
                end = 1 if parts[-1].endswith(b"\n") and data.startswith(b"\n") else 0
            if end:
                self._rest = data[end:]
                piece = b"".join((*parts, data[:end]))
                self._check(piece)
                return piece
            parts.append(data)
            data = await read(self.backend, self.response)
        raise WorkerFailedError(self.backend.id, broken)

    def _check(self, piece: bytes) -> None:
        """Note that the worker refuses the request. Raises WorkerFailedError for any other error."""
        status = raise_error(self.backend, piece)
        if not self.tokens:
            self.refused = self.refused or status

    async def rest(self) -> None:
        """Wait shortly for what comes behind the end of a stream: then its connection can be used again."""
        with contextlib.suppress(WorkerFailedError, TimeoutError):
            async with asyncio.timeout(REST_S):
                while await read(self.backend, self.response):
                    pass
        self.response.close()

    def _count(self, piece: bytes) -> None:
        """Enter the tokens of a piece in the books. Workers send one event for each token, or fewer.

        With speculation or ``--stream-interval`` an event has several tokens. Where events do not say so, each one
        counts as one token.
        """
        now_s = monotonic()
        # What begins an event may also stand in the text of one, but never behind the end of one.
        events = piece.startswith(protocol.EVENT_START) + piece.count(protocol.EVENT_END + protocol.EVENT_START)
        if protocol.DONE in piece[-len(protocol.DONE_EVENT) :]:
            self.ended = True
            events -= 1
        events -= sum(map(piece.count, self._silent))
        so_far = protocol.said_tokens(piece) if self._counted else None
        new = events if so_far is None else so_far - self.tokens
        if new > 0 and self.refused is None:
            gap_s = (now_s - self._last_s) / new if self._single and self._last_s is not None else None
            self.backend.view.load.tokens(new, gap_s, now_s)
            self.tokens += new
            self._last_s = now_s


class Upstream:
    """The connections to all workers.

    :param tls: what checks their certificates.
    """

    def __init__(self, settings: GatewayConfig, tls: ssl.SSLContext) -> None:
        self._connections = Connections(settings.connect_s, tls)
        self._most_bytes = settings.max_answer_mib * MIB
        self._settings = settings
        self.room = Room(settings.max_answers_mib * MIB)
        """Of all whole answers."""
        self._background: set[asyncio.Task[Any]] = set()

    async def post(
        self, backend: Backend, path: str, body: bytes, headers: Mapping[str, str], *, stream: bool
    ) -> Response:
        """Send a request and wait for the head of the answer. Raises WorkerFailedError or RefusedError."""
        silence_s = self._settings.silence_s if stream else None
        try:
            if backend.key.key is not None:
                headers = {**headers, **backend.key.headers}
            response = await self._connections.post(backend.url, path, body, headers, silence_s)
        except FAILURES as error:
            if shortage(error):
                raise ShortageError(error) from error
            silent = isinstance(error, TimeoutError)
            raise WorkerFailedError(backend.id, said(error), gone=refused(error), silent=silent) from error
        if backend.key.refused(response.status, headers):
            response.close()
            raise WorkerFailedError(backend.id, f"status {response.status}: it refuses our key")
        if response.status >= 400:
            await self._refused(backend, response)
        if response.status != HTTPStatus.OK:  # a redirect, or an answer without a body
            response.close()
            raise WorkerFailedError(backend.id, f"status {response.status}")
        if response.encoded:
            response.close()
            raise WorkerFailedError(backend.id, "an answer that is compressed")
        return response

    async def begin(self, backend: Backend, response: Response, rid: str, call: Call) -> Answer:
        """Return an answer once its beginning is there. Raises WorkerFailedError, also for the form not asked for.

        What begins as a stream could not go on as a whole answer, should another worker have to take over.
        """
        single = call.one_answer
        counted = single and call.path == protocol.GENERATE
        silent = protocol.SILENT.get(call.path, ())
        answer = Answer(backend, response, rid, self._most_bytes, single=single, counted=counted, silent=silent)
        if answer.stream != call.stream:
            raise WorkerFailedError(backend.id, f"an answer of the type {answer.content_type[:80]!r}")
        await answer.begin(self.room)
        return answer

    async def reply(self, backend: Backend, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a request and return all of the answer. Raises WorkerFailedError or RefusedError."""
        response = await self.post(backend, path, body, headers, stream=True)
        data = await read_all(backend, response, self._most_bytes, self.room)
        refuse(backend, data)
        return data

    async def _refused(self, backend: Backend, response: Response) -> None:
        body = await read_all(backend, response, self._most_bytes, self.room)
        if response.status in FULL:
            raise WorkerFullError(backend.id, f"status {response.status}", retry_after(response.retry_after))
        if response.status >= 500:
            why = f"status {response.status}: {body[:200].decode(errors='replace')}"
            raise WorkerFailedError(backend.id, why, told=True)
        if response.encoded:
            raise WorkerFailedError(backend.id, f"status {response.status}, and why is compressed")
        raise RefusedError(response.status, body, response.content_type)

    def end(self, answer: Answer) -> None:
        """Finish with an answer; one that has not come to its end is aborted."""
        self.room.give(answer.held_bytes)
        if answer.ended:
            if not answer.response.ended:  # the client has all of it, and waits for nothing
                self.background(answer.rest())
        else:
            self.drop(answer.backend, answer.rid, answer.response)

    def drop(self, backend: Backend, rid: str, response: Response | None) -> None:
        """Give up a leg: close its connection and tell the worker to stop."""
        if response is not None:
            response.close()
        if backend.alive or backend.ends:
            self.background(self._abort(backend, rid))

    async def _abort(self, backend: Backend, rid: str) -> None:
        with contextlib.suppress(*FAILURES, TooLongError):
            async with asyncio.timeout(ABORT_S):
                body, headers = protocol.dumps({"rid": rid}), backend.key.admin_headers
                response = await self._connections.post(backend.url, protocol.ABORT, body, headers, ABORT_S)
                await read_to_end(response, MIB, self.room)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; `settle` waits for it."""
        self.keep(asyncio.get_running_loop().create_task(work))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Let a task go on by itself, whatever becomes of it; `settle` waits for it."""
        if not task.done():
            self._background.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio would log that nobody has asked for it

    def forget(self, backend: Backend) -> None:
        """Let go of the connections to a worker at its address of now."""
        self._connections.forget(backend.url)

    async def settle(self, within_s: float) -> None:
        """Wait so long for background work, then end it."""
        if self._background:
            await asyncio.wait(self._background, timeout=within_s)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._connections.close()

    async def ask(self, backend: Backend, path: str, data: Any) -> bytes:
        """Post JSON and return what comes back. Raises WorkerFailedError or RefusedError."""
        response = await self.post(backend, path, protocol.dumps(data), {}, stream=True)
        return await read_all(backend, response, self._most_bytes, self.room)


async def read(backend: Backend, response: Response) -> bytes:
    """Return the next bytes of an answer; nothing at its end. Raises WorkerFailedError."""
    try:
        return await response.readany()
    except FAILURES as error:
        response.close()
        raise WorkerFailedError(backend.id, said(error)) from error


async def read_all(backend: Backend, response: Response, most_bytes: int, room: Room) -> bytes:
    """Return the whole answer. Raises WorkerFailedError, or AnswersTooLongError."""
    if data := response.all_of_it(most_bytes):  # as it mostly is: its head and its body come together
        return data
    try:
        return await read_to_end(response, most_bytes, room)
    except (*FAILURES, TooLongError) as error:
        raise WorkerFailedError(backend.id, said(error)) from error


async def read_to_end(response: Response, most_bytes: int, room: Room) -> bytes:
    """Return the whole answer, or give it up. It takes room while it comes."""
    with Hold(room) as hold:

        async def more() -> bytes:
            part = await response.readany()
            hold.take(len(part))
            return part

        try:
            return await read_whole(more, most_bytes)
        except BaseException:
            response.close()
            raise


def retry_after(header: str | None) -> float | None:
    """Read a ``Retry-After`` in seconds; None where there is none, or a date."""
    return min(float(header), LONGEST_WAIT_S) if header is not None and re.fullmatch(r"\d{1,9}", header) else None


def refuse(backend: Backend, data: bytes) -> None:
    """Raise RefusedError or WorkerFailedError for an error that `data` tells."""
    if (status := raise_error(backend, data)) is not None:
        raise RefusedError(status, protocol.refusal(data), "application/json")


def raise_error(backend: Backend, data: bytes) -> int | None:
    """Raise WorkerFailedError for an error that `data` tells. Return its status where the client is to blame."""
    status: int | None = None
    if protocol.ERROR_EVENT not in data and protocol.ABORTED not in data:
        return status
    for event in protocol.events(data):
        try:
            said = protocol.parsed(event) or {}
            error = said.get("error") or protocol.failure(said)
        except protocol.OddAnswerError as odd:
            raise WorkerFailedError(backend.id, str(odd)) from None
        code = error.get("code") if isinstance(error, dict) else None
        code = code if isinstance(code, int) else None
        if error and code in FULL:
            raise WorkerFullError(backend.id, f"error {code}")
        if error and not (code is not None and 400 <= code < 500):
            raise WorkerFailedError(backend.id, f"error: {str(error)[:200]}", told=True)
        status = status or (code if error else None)
    return status
