"""One request while it is served: placed, answered, moved elsewhere when a worker fails, noted in books."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from pdplugins.contracts.request import Request, swift_request
from pdplugins.gateway.admission import RETRY_AFTER_S
from pdplugins.gateway.engine import Call, Relay, Started, Work
from pdplugins.gateway.errors import GatewayError, RefusedError, WorkerFailedError
from pdplugins.gateway.latencies import Latencies
from pdplugins.gateway.primitive import Execution, Primitive, alone
from pdplugins.gateway.prompts import blocks_of
from pdplugins.gateway.retry import pause_s
from pdplugins.gateway.sessions import Session
from pdplugins.gateway.workers import Worker

if TYPE_CHECKING:
    from pdplugins.gateway.serving import Serving


@dataclass(slots=True)
class Attempt:
    """One attempt to serve a request: what is still to be done, and with which work."""

    request: Request
    execution: Execution
    work: Work[Any]

    def but(self, execution: Execution | None = None, **work: Any) -> Attempt:
        """Return this attempt with another execution, and other values in its work."""
        return Attempt(self.request, execution or self.execution, replace(self.work, **work))


class RequestTask:
    """One request while it is served."""

    def __init__(self, serving: Serving, name: str, call: Call, client: Started) -> None:
        self._all = serving
        self._name = name
        self._call = call
        self._client = client
        self._arrived_s = monotonic()
        self._asked: tuple[Call, Started, Relay[Any]] | None = None
        """The request as the client asked it, where it is asked in another form."""
        self._blocks = blocks_of(call)
        self._prompt = self.prompt_tokens = serving.prompt_tokens(call)
        self._session: Session | None = serving.sessions.find(call.session)
        self._ids: list[int] | None = None
        self._failed: tuple[str, ...] = ()
        """Workers that have failed it, the most suspect of the last failure first."""
        self._whole_tokens: int | None = None
        """Output tokens of the answer, once it is whole."""
        self.workers: tuple[str, ...] = ()
        """Who is to serve it, as the last placement says: who prefills, then who decodes."""
        self.arrival = self._request(0)
        """The request as it came."""
        begun = partial(serving.routing.begun, self.arrival)
        self._latencies = Latencies(serving.metrics, self._arrived_s, begun, single=call.one_answer)
        self._relay = serving.executor.relay(call, client, self._latencies.tokens)

    @property
    def age_s(self) -> float:
        """Seconds since it came."""
        return monotonic() - self._arrived_s

    @property
    def output_tokens(self) -> int:
        """Output tokens that the client has got."""
        return self._relay.delivered_tokens if self._whole_tokens is None else self._whole_tokens

    def latencies(self) -> tuple[float | None, float | None]:
        """Return TTFT and TPOT of an answer that ends now, in seconds; None for what came in one piece."""
        return self._latencies.ended(self._whole_tokens)

    async def run(self) -> None:
        """Try until it is answered, or nothing is left to try."""
        self._all.retries.arrived()
        for attempt in itertools.count():
            try:
                await self._attempt()
            except WorkerFailedError as error:
                self._note(error, attempt)
                if await self._relay.close():
                    return
                if attempt >= self._all.settings.retries:
                    raise _given_up(error, attempt + 1) from None
                self._keep_answer(error)
                await self._before_retry(error, attempt)
            else:
                return

    def _note(self, error: WorkerFailedError, attempt: int) -> None:
        """Note who failed. One request makes no more than one worker rest: what fails everywhere is the request."""
        self._all.metrics.fault("worker_full" if error.full else "worker_failed", error)
        self._failed = tuple(dict.fromkeys((*error.workers, *self._failed)))
        if error.gone or not (error.full or attempt):
            self._all.backends.failed(error.workers[0], gone=error.gone)

    async def _before_retry(self, error: WorkerFailedError, attempt: int) -> None:
        """Wait before the next attempt, unless a worker broke for the first time. Raises GatewayError: no budget."""
        if not attempt and not error.full:
            return
        if not self._all.retries.take():
            self._all.metrics.overload("retries")
            raise _full(error)
        with self._all.admission.waiting():
            await asyncio.sleep(pause_s(self._all.settings, attempt))

    def _keep_answer(self, error: WorkerFailedError) -> None:
        """Keep what the client has got. Raises GatewayError when no other worker can go on from there."""
        if not self._relay.speaking:
            return
        if not self._call.continuable:
            raise GatewayError(
                502, f"the worker failed in the middle of the answer, and {self._call.goes_on_elsewhere}"
            )
        self._relay.fold()
        self._all.metrics.fault("resumed", error)

    # --- the stages of an attempt ----------------------------------------------------------------------------------

    async def _attempt(self) -> None:
        """Serve the request once. Each stage that the execution has does its part, and says what is left."""
        if not self._all.backends.serves.is_set():
            await self._all.worker_there()
        attempt = self._placed()
        if self._relay.ids:
            attempt = await self._resumed(attempt)
        primitive = attempt.execution.primitive
        self._all.metrics.primitive(primitive)
        if primitive is Primitive.WARM:
            attempt = await self._warmed(attempt)
            primitive = attempt.execution.primitive
        if primitive is Primitive.PAIR and (history := self._missing_history(attempt)):
            attempt = await self._given_history(attempt, history)
        elif primitive is Primitive.PUSH:
            attempt = await self._pushed(attempt)
        elif primitive is Primitive.HEAD:
            rest = await self._head(attempt)
            if rest is None:
                return
            attempt = rest
        await self._answered(attempt)

    def _placed(self) -> Attempt:
        """Ask the router."""
        done = len(self._relay.ids)
        # Who holds its session may have been lost since it came.
        request = self._request(done) if done or self._session is not None else self.arrival
        execution = self._all.routing.arrive(request, self._call, self._failed)
        self.workers = tuple(filter(None, dict.fromkeys((execution.first, execution.second))))
        if execution.primitive is Primitive.HEAD:
            self._make_splittable(self._backend(execution.first))
        new_tokens = max(request.prompt_tokens - request.history_tokens, 1)
        computed = partial(self._all.routing.computed, request)
        work = Work(self._call, self._call.body, request.prompt_tokens, new_tokens, self._arrived_s, computed)
        return Attempt(request, execution, work)

    def _make_splittable(self, first: Worker) -> None:
        call, client = self._all.executor.splittable(self._call, self._client, first)
        if call is not self._call:
            self._asked = self._call, self._client, self._relay
            self._call, self._client = call, client
            self._relay = self._all.executor.relay(call, client, self._latencies.tokens)

    async def _resumed(self, attempt: Attempt) -> Attempt:
        """Go on from the tokens that the client has got from other workers: they are part of the prompt now."""
        was, routing = attempt.execution, self._all.routing
        if was.second is None and not alone(self._backend(was.first).view):  # it cannot go on by itself
            was = routing.prefilled(attempt.request, was.first, was.prompt, self._call, self._failed, early=True)
        execution = Execution(was.first, was.second or was.first, was.prompt, was.prompt)
        ids = await self._prompt_ids(was.first)
        return attempt.but(execution, body=self._call.continued(ids + self._relay.ids, len(self._relay.ids)))

    async def _warmed(self, attempt: Attempt) -> Attempt:
        """Prefill where who decodes is decided afterwards, and ask the router who that is.

        A worker that refuses to prefill gets the request as the client asked it, for the refusal in that form.
        """
        was = attempt.execution
        try:
            await self._all.executor.warm(self._backend(was.first), attempt.but(body=self._call.prefill_only()).work)
        except RefusedError:
            return attempt.but(Execution.local(was.first, was.prompt))
        rest = self._all.routing.prefilled(attempt.request, was.first, was.split, self._call, self._failed)
        return attempt.but(rest, new_tokens=1)

    async def _given_history(self, attempt: Attempt, history: int) -> Attempt:
        """Give a session's history to the worker that prefills, where only the one that decodes has its KV cache."""
        if (ids := await self._ids_or_none(attempt.execution.first)) is None:
            return attempt
        self._all.metrics.primitive("history")
        execution, work = attempt.execution, attempt.work
        source = replace(work, new_tokens=max(work.prompt_tokens - history, 1))
        first, second = self._backend(execution.first), self._backend(execution.second)
        with suppress(RefusedError):  # the client gets the refusal of its own request, if there is one
            await self._all.executor.push(second, first, ids[: min(history, len(ids) - 1)], source)
        return attempt

    async def _pushed(self, attempt: Attempt) -> Attempt:
        """Compute the beginning of a split prompt on the first worker; the second one does the rest by itself.

        Where it refuses, the second one gets all of the request as the client asked it, for the refusal in that form.
        """
        execution, work = attempt.execution, attempt.work
        assert execution.second is not None  # noqa: S101 - only a warm execution has an open second worker
        if (ids := await self._ids_or_none(execution.first)) is None:
            return attempt.but(replace(execution, split=execution.prompt))
        split = min(max(execution.split, 1), len(ids) - 1)
        if split > 0:
            first, second = self._backend(execution.first), self._backend(execution.second)
            try:
                await self._all.executor.push(first, second, ids[:split], work)
            except RefusedError:
                split = 0
        return attempt.but(Execution.local(execution.second, execution.prompt), new_tokens=max(len(ids) - split, 1))

    async def _head(self, attempt: Attempt) -> Attempt | None:
        """Let the first worker begin the answer. Return what is left to do; None when that was all of it.

        What it refuses is asked again in the form in which the client asked it, for the refusal in that form.
        """
        execution = attempt.execution
        begun = attempt.but(body=self._call.limited(execution.split - execution.prompt))
        first = self._backend(execution.first)
        try:
            async with self._all.executor.local(first, begun.work) as answer:
                whole = await self._relay.run(answer, head=True)
        except RefusedError:
            if self._asked is None or self._client.started:
                raise
            (self._call, self._client, self._relay), self._asked = self._asked, None
            return attempt.but(replace(execution, split=execution.prompt), call=self._call, body=self._call.body)
        if whole:
            self._finish(attempt.request, first, first, self._relay.usage("completion_tokens") or answer.tokens)
            return None
        self._relay.fold()
        return await self._after_head(attempt)

    async def _after_head(self, attempt: Attempt) -> Attempt:
        """Go on elsewhere from the tokens of the first worker."""
        ids = await self._prompt_ids(attempt.execution.first) + self._relay.ids
        body = self._call.continued(ids, len(self._relay.ids))
        return attempt.but(body=body, prompt_tokens=len(ids), new_tokens=1)

    async def _answered(self, attempt: Attempt) -> None:
        """Pass on the answer, of one worker or of a pair."""
        executor, execution = self._all.executor, attempt.execution
        first, second = self._backend(execution.first), self._backend(execution.second)
        leg = executor.local(first, attempt.work) if first is second else executor.pair(first, second, attempt.work)
        async with leg as answer:
            await self._relay.run(answer)
            tokens = self._relay.usage("completion_tokens") or answer.tokens
            if answer.refused is not None:  # the client has got it; there is nothing to learn from
                raise RefusedError(answer.refused, b"", "")  # inside, so that the other leg of a pair ends now
        self._finish(attempt.request, first, second, tokens + len(self._relay.ids))

    # --- what the stages need ---------------------------------------------------------------------------------------

    def _backend(self, worker: str | None) -> Worker:
        assert worker is not None  # noqa: S101 - only a warm execution has an open second worker
        found: Worker = self._all.backends.by_id[worker]
        return found

    def _missing_history(self, attempt: Attempt) -> int:
        """Return the tokens of history that the worker that decodes has, and the one that prefills has not."""
        session, execution = self._session, attempt.execution
        if session is None or session.bound_worker != execution.second or not self._call.pushes:
            return 0
        kinds = [self._backend(worker).view.capabilities for worker in (execution.first, execution.second)]
        if not (self._all.settings.transfer_history and all(can is not None and can.splits for can in kinds)):
            return 0
        history = attempt.request.history_tokens
        return history if history > session.held.get(execution.first, 0) else 0

    async def _ids_or_none(self, worker: str) -> list[int] | None:
        """Return the token ids of the prompt; None where its tokenizer refuses, as for images."""
        try:
            return await self._prompt_ids(worker)
        except RefusedError as error:
            self._all.metrics.fault("refused_no_ids", error)
            return None

    async def _prompt_ids(self, worker: str) -> list[int]:
        """Return the token ids of the prompt; of text, as the worker's tokenizer cuts it."""
        prompt = self._call.prompt
        if isinstance(prompt, list):
            return prompt
        if self._ids is None:
            self._ids = await self._all.executor.prompt_ids(self._backend(worker), self._call)
        return self._ids

    # --- the books -------------------------------------------------------------------------------------------------

    def _request(self, done: int) -> Request:
        call, session = self._call, self._session
        pinned = call.pinned_tokens
        bound = session.bound_worker if session else None
        backend = self._all.backends.by_id.get(bound or "")
        alive = backend is not None and backend.alive
        return swift_request(
            self._name,
            self._arrived_s,
            self._prompt + done,
            None if pinned is None else max(pinned - done, 1),
            session.history(self._prompt, self._blocks) if session and alive else 0,
            call.session,
            bound if alive else None,
            self._blocks,
            call.terms,
        )

    def _finish(self, request: Request, first: Worker, second: Worker, output: int) -> None:
        """Learn from an answer that is whole."""
        self._whole_tokens = output
        if (prompt := self._relay.usage("prompt_tokens")) is not None and not self._relay.ids:
            self._all.lengths.learn(self._call, prompt)
            self.prompt_tokens = prompt
        for backend in {first, second}:
            backend.view.cached_blocks.add(self._blocks, backend.view.kv_capacity_tokens)
        if (name := self._call.session) is not None:
            session = self._all.sessions.remember(name)
            session.bound_worker = second.id
            session.prefix = len(self._blocks), self._blocks[-1] if self._blocks else 0
            session.tokens = self._prompt + output
            session.held[first.id] = request.prompt_tokens
            session.held[second.id] = session.tokens
            self._all.sessions.changed(name, session)


def _given_up(error: WorkerFailedError, attempts: int) -> GatewayError:
    if error.full:
        return _full(error)
    what = "no worker answered in time" if error.silent else "the workers failed"
    return GatewayError(502, f"gave up after {attempts} attempts: {what}")


def _full(error: WorkerFailedError) -> GatewayError:
    """Return the refusal of a request for which no worker has a place, or that must not be tried again now."""
    what = "the workers are full" if error.full else "too many requests have failed"
    return GatewayError(503, what, error.retry_after_s or RETRY_AFTER_S)
