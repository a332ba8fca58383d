"""One request from its arrival to its end: placed, begun, moved elsewhere when a worker fails, entered in the books."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

from pdplugins.contracts.request import Request
from pdplugins.gateway.calls import CHAT, Call, Lengths, blocks_of
from pdplugins.gateway.completions import CompletionsReply, as_generate
from pdplugins.gateway.engines.sglang import protocol
from pdplugins.gateway.errors import GatewayError, RefusedError, WorkerFailedError
from pdplugins.gateway.fleet import Fleet, Worker
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.primitives import Primitives, Work
from pdplugins.gateway.routing import Plan, Routing
from pdplugins.gateway.sessions import Session, Sessions
from pdplugins.gateway.settings import GatewaySettings
from pdplugins.gateway.streams import Client, Relay, Reply
from pdplugins.gateway.upstream import Answer, Upstream

TEMPLATE_FIELDS = ("model", "messages", "tools", "tool_choice", "chat_template_kwargs", "continue_final_message")


class Serving:
    """What all requests share."""

    def __init__(
        self, routing: Routing, fleet: Fleet, upstream: Upstream, settings: GatewaySettings, metrics: GatewayMetrics
    ) -> None:
        self.routing = routing
        self.fleet = fleet
        self.upstream = upstream
        self.settings = settings
        self.metrics = metrics
        self.primitives = Primitives(upstream, settings)
        self.sessions = Sessions()
        self.lengths = Lengths()

    async def serve(self, call: Call, reply: Reply) -> None:
        """Answer one request. Raises GatewayError or RefusedError."""
        await Flight(self, call, reply).run()


class Flight:
    """One request in flight."""

    def __init__(self, serving: Serving, call: Call, reply: Reply) -> None:
        self._all = serving
        self._call = call
        self._reply: Client = reply
        self._arrived_s = monotonic()
        self._relay = Relay(call, reply, self._first_token)
        self._blocks = blocks_of(call)
        self._prompt = serving.lengths.prompt_tokens(call)
        self._session: Session | None = serving.sessions.get(call.session)
        self._ids: list[int] | None = None
        self._failed: tuple[str, ...] = ()
        """Workers that have failed it, the most suspect of the last failure first."""

    async def run(self) -> None:
        """Try until it is answered, or nothing is left to try."""
        for attempt in itertools.count():
            try:
                await self._attempt()
            except WorkerFailedError as error:
                self._all.metrics.fault("worker_failed", error)
                self._failed = tuple(dict.fromkeys((*error.workers, *self._failed)))
                self._all.fleet.failed(error.workers[0], gone=error.gone)
                if await self._relay.close():
                    return
                if attempt >= self._all.settings.retries:
                    raise GatewayError(502, f"gave up after {attempt + 1} attempts; the last: {error}") from None
                await self._keep(error)
            else:
                return

    async def _keep(self, error: WorkerFailedError) -> None:
        """Keep what the client has got. Raises GatewayError when no other worker can go on from there."""
        if not self._relay.speaking:
            return
        if not self._call.continuable:
            why = "only /generate with plain sampling can go on elsewhere"
            raise GatewayError(502, f"the worker failed in the middle of the answer, and {why}: {error}")
        self._relay.fold()
        self._all.metrics.fault("resumed", error)

    async def _attempt(self) -> None:
        done = len(self._relay.ids)
        request = self._request(done)
        plan = self._all.routing.arrive(request, self._call, self._failed)
        if plan.primitive == "head" and (call := as_generate(self._call)) is not None:
            self._reply = CompletionsReply(self._reply, self._call, incremental=plan.first.incremental)
            self._call, self._relay = call, Relay(call, self._reply, self._first_token)
        work = self._work(request)
        if done:
            plan = replace(plan, second=plan.second or plan.first, split=plan.prompt)
            ids = await self._prompt_ids(plan.first)
            work = replace(work, body=self._call.continued(ids + self._relay.ids, done))
        self._all.metrics.primitives.labels(plan.primitive).inc()
        if plan.second is None:
            body = protocol.splice(work.body, self._call.prefill_only())
            await self._all.primitives.warm(plan.first, replace(work, body=body))
            plan, work = self._all.routing.prefilled(request, plan, self._call), replace(work, new_tokens=1)
        plan, work = await self._prepared(plan, work, request)
        if plan.primitive == "head":
            if await self._head(plan, work):
                self._finish(request, plan.first, plan.first)
                return
            ids = await self._prompt_ids(plan.first) + self._relay.ids
            body = self._call.continued(ids, len(self._relay.ids))
            work = replace(work, body=body, prompt_tokens=len(ids), new_tokens=1)
        assert plan.second is not None  # noqa: S101 - decided above
        async with self._begun(plan, work) as answer:
            await self._relay.run(answer)
            tokens = self._relay.usage("completion_tokens") or answer.tokens
        self._finish(request, plan.first, plan.second, tokens + len(self._relay.ids))

    @asynccontextmanager
    async def _begun(self, plan: Plan, work: Work) -> AsyncIterator[Answer]:
        primitives = self._all.primitives
        assert plan.second is not None  # noqa: S101 - for the type checker
        leg = primitives.local(plan.first, work) if plan.local else primitives.pair(plan.first, plan.second, work)
        async with leg as answer:
            yield answer

    # --- before the answer begins --------------------------------------------------------------------------------

    async def _prepared(self, plan: Plan, work: Work, request: Request) -> tuple[Plan, Work]:
        """Put KV cache into place: the prefix of a split prompt, or the history of a session."""
        first, second = plan.first, plan.second
        assert second is not None  # noqa: S101 - for the type checker
        fields = self._call.fields
        history = self._missing_history(plan, request) if plan.primitive == "pair" else 0
        if plan.primitive != "push" and not history:
            return plan, work
        try:
            ids = await self._prompt_ids(first)
        except RefusedError as error:  # a prompt that its tokenizer does not tell, such as one with images
            self._all.metrics.fault("refused_no_ids", error)
            return replace(plan, split=plan.prompt), work
        if history:
            self._all.metrics.primitives.labels("history").inc()
            source = replace(work, new_tokens=max(work.prompt_tokens - history, 1))
            await self._all.primitives.push(second, first, ids[: min(history, len(ids) - 1)], source, fields)
            return plan, work
        split = min(max(plan.split, 1), len(ids) - 1)
        if split > 0:
            await self._all.primitives.push(first, second, ids[:split], work, fields)
        return Plan(second, second, plan.prompt, plan.prompt), replace(work, new_tokens=max(len(ids) - split, 1))

    def _missing_history(self, plan: Plan, request: Request) -> int:
        """Return the tokens of history that the worker that decodes has, and the one that prefills has not."""
        session, second = self._session, plan.second
        if session is None or second is None or session.bound_worker != second.id:
            return 0
        if not (self._all.settings.transfer_history and plan.first.alone and second.alone):
            return 0
        history = request.history_tokens
        return history if history > session.held.get(plan.first.id, 0) else 0

    async def _head(self, plan: Plan, work: Work) -> bool:
        """Let the first worker begin the answer; return whether that was all of it."""
        body = protocol.splice(work.body, self._call.limited(plan.split - plan.prompt))
        async with self._all.primitives.local(plan.first, replace(work, body=body)) as answer:
            whole = await self._relay.run(answer, head=True)
        if not whole:
            self._relay.fold()
        return whole

    async def _prompt_ids(self, worker: Worker) -> list[int]:
        """Return the token ids of the prompt; of text, as the worker's tokenizer cuts it."""
        prompt = self._call.prompt
        if isinstance(prompt, list):
            return prompt
        if self._ids is None:
            fields = self._call.fields
            question = {key: fields[key] for key in TEMPLATE_FIELDS if key in fields}
            if self._call.path != CHAT:
                question = {"prompt": prompt}
            self._ids = list((await self._all.upstream.ask(worker, protocol.TOKENIZE, question))["tokens"])
        return self._ids

    # --- the books -------------------------------------------------------------------------------------------------

    def _request(self, done: int) -> Request:
        call, session = self._call, self._session
        pinned = call.pinned_tokens
        bound = session.bound_worker if session else None
        worker = self._all.fleet.by_id.get(bound or "")
        alive = worker is not None and worker.alive
        return Request(
            call.rid,
            self._arrived_s,
            self._prompt + done,
            None if pinned is None else max(pinned - done, 1),
            session.history(self._prompt, self._blocks) if session and alive else 0,
            call.session,
            bound if alive else None,
            self._blocks,
        )

    def _work(self, request: Request) -> Work:
        call = self._call
        new = max(request.prompt_tokens - request.history_tokens, 1)
        return Work(
            call.path,
            call.body,
            call.headers,
            call.stream,
            call.batch,
            request.prompt_tokens,
            new,
            self._arrived_s,
            bool(call.fields.get("return_logprob")),
        )

    def _first_token(self) -> None:
        if not self._relay.ids:
            self._all.metrics.ttft.observe(monotonic() - self._arrived_s)

    def _finish(self, request: Request, first: Worker, second: Worker, tokens: int | None = None) -> None:
        """Learn from an answer that is whole."""
        output = tokens if tokens is not None else self._relay.usage("completion_tokens") or 1
        if (prompt := self._relay.usage("prompt_tokens")) is not None and not self._relay.ids:
            self._all.lengths.learn(self._call, prompt)
        for worker in {first, second}:
            worker.view.cached_blocks.add(self._blocks, worker.view.kv_capacity_tokens)
        if (session := self._session) is not None:
            session.bound_worker, session.blocks = second.id, self._blocks
            session.tokens = request.prompt_tokens + output
            session.held[first.id] = request.prompt_tokens
            session.held[second.id] = session.tokens
        self._all.routing.finished(request, output)
