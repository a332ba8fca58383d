"""The global scheduler: which workers serve a request, and at which token it goes from one to the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import by_role, cached_tokens
from pdplugins.policies.dynaserve.balance import balance, legs
from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.lengths import build_predictor
from pdplugins.policies.dynaserve.passes import PassCosts
from pdplugins.policies.dynaserve.play import Leg
from pdplugins.policies.dynaserve.pressure import Pressure
from pdplugins.policies.dynaserve.server import LONGEST, Job, Server

SAMPLE = 2
"""Workers of a group that are asked what they have cached of a prompt: all of them would double a decision's time."""
LOOK_EVERY = 17
"""Requests between two looks at how busy the pool is."""
MOST_KNOWN = 2**16
"""Requests in service that are remembered."""


class DynaServeRouter:
    """Splits a request between two workers where that pays, and leaves it whole where it does not (section 3.1).

    A decision looks at one group of about `choices` workers. The groups take turns.
    """

    def __init__(self, settings: DynaServeRouterSettings, deployment: Deployment) -> None:
        self._settings = settings
        self._handoff_s = deployment.perf.transfer_s(0)
        """From the end of the first micro-request to the start of the second: the last chunk of KV cache."""
        self._costs = PassCosts(deployment)
        self._lengths = build_predictor(settings)
        self._pressure = Pressure(self._costs)
        self._workers: tuple[WorkerView, ...] | None = None
        self._servers: dict[str, Server] = {}
        self._groups: list[list[Server]] = []
        self._given: OrderedDict[str, list[tuple[Server, Leg]]] = OrderedDict()
        """Micro-requests of each request in service."""
        self._strict: dict[str, list[Server]] = {}
        """Where requests in service decode that have a TPOT of their own below the deployment's."""
        self._turns = 0
        self._share = 0.0

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request."""
        if workers is not self._workers:
            self._see(workers)
        self._take_back(request)
        group = self._group(request)
        job = self._job(request, group, now_s)
        self._pressure.arrived(job.prompt_s, job.prompt - job.history, now_s)
        for server in group:
            server.follow(self._costs, job)
        underused = self._underused(group)
        decoders = self._decoders(group, job, underused)
        balanced = self._settings.split == "balanced" and not underused
        first = self._first(group, job, request.bound_worker, balanced)
        if first.alone and first in decoders and not balanced:
            return self._whole(job, first)
        others = [server for server in decoders if server is not first]
        if not others:
            return self._whole(job, first if first.alone and first.holds(job.length) else self._largest())
        if not balanced:
            return self._cut(job, first, min(others, key=Server.fill), job.prompt)
        second = min(others, key=lambda server: server.timeline.finish_s)
        return self._cut(job, first, second, self._balance(job, first, second))

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`, which was complete at arrival, with another decode worker where its own is gone."""
        if workers is not self._workers:
            self._see(workers)
        if placement.second in self._servers:
            return placement
        able = [server for server in self._servers.values() if server.can(Role.DECODE)] or self._servers.values()
        return Placement(placement.first, min(able, key=Server.fill).view.id, placement.split)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Teach the output-length predictor with complete answers, and take back what will not be done of others."""
        if outcome.ending is Ending.FINISHED:
            self._lengths.learn(request, outcome.output_tokens)
            self._given.pop(request.id, None)
            self._left(request.id)
        else:
            self._take_back(request)

    def _job(self, request: Request, group: Sequence[Server], now_s: float) -> Job:
        prompt, predicted = min(max(request.prompt_tokens, 1), LONGEST), self._lengths.predict(request)
        tokens = int(min(max(predicted, 1), LONGEST)) if is_number(predicted) else 1
        history = max(request.history_tokens, 0) if request.bound_worker in self._servers else 0
        if request.blocks:  # workers are not chosen by what they have cached, so the mean of some counts
            some = group[:SAMPLE]
            cached = sum([cached_tokens(request, server.view, self._settings.block_tokens) for server in some])
            history = min(max(history, cached // len(some)), prompt - 1)
        prompt_s = self._costs.prompt_s(history, prompt)
        own_s = self._own_s(request, prompt)
        return Job(request.id, prompt, tokens + self._settings.margin_tokens, prompt_s, now_s, history, own_s)

    def _own_s(self, request: Request, prompt: int) -> float | None:
        """Return the TPOT of a request that asks for less than the deployment's, unless nothing keeps that."""
        own_s = None if request.terms is None else request.terms.tpot_s
        keeps = own_s is not None and self._costs.decode_s(1, prompt) <= own_s < self._costs.slo_s
        return own_s if keeps else None

    # --- the workers -----------------------------------------------------------------------------------------------

    def _see(self, workers: tuple[WorkerView, ...]) -> None:
        pools = by_role("dynaserve", workers)
        known = self._servers
        self._servers = {view.id: known.get(view.id) or Server(view, self._costs) for view in workers}
        for view in workers:
            self._servers[view.id].view = view
        self._workers = workers
        count = max(round(len(workers) / self._settings.choices), 1)
        self._groups = [[] for _ in range(count)]
        for index, view in enumerate((*pools[Role.PREFILL], *pools[Role.DECODE])):
            self._groups[index % count].append(self._servers[view.id])

    def _group(self, request: Request) -> Sequence[Server]:
        """Return the workers to look at: the next group, and the one that has the KV cache of the session."""
        self._turns += 1
        group = self._groups[self._turns % len(self._groups)]
        bound = self._servers.get(request.bound_worker or "")
        return group if bound is None or bound in group else [bound, *group]

    def _underused(self, group: Sequence[Server]) -> bool:
        """Return whether splits would not pay, as workers have time for prompts beside what they decode."""
        if not self._turns % LOOK_EVERY:
            batch = sum([server.timeline.batch for server in group])
            context_tokens = sum([server.timeline.context_tokens for server in group])
            self._share = self._pressure.share(len(self._servers), batch / len(group), context_tokens / len(group))
        return self._share < self._settings.underused

    def _decoders(self, group: Sequence[Server], job: Job, underused: bool) -> Sequence[Server]:
        """Return the workers that may decode a request. With `pairs: roles` some only prefill, unless underused.

        Requests with a TPOT below the deployment's decode together, and others apart from them: one of them leaves all
        prompts of its worker little of each step.
        """
        able = [server for server in group if server.can(Role.DECODE) and server.holds(job.length)]
        if self._strict or job.own_s is not None:
            apart = [server for server in able if bool(server.strict) == (job.own_s is not None)]
            able = [server for server in apart if server.takes(job, self._costs)] or able
        if self._settings.pairs == "roles" and not underused:
            named = [server for server in able if server.view.role is Role.DECODE and server.takes(job, self._costs)]
            if named:
                return named
        return [server for server in able if server.takes(job, self._costs)] or able

    def _first(self, group: Sequence[Server], job: Job, bound: str | None, balanced: bool) -> Server:
        """Return the worker with the session's KV cache, else the one that would have done the prompt first."""
        able = [server for server in group if server.can(Role.PREFILL) and server.holds(job.prompt)] or group
        if bound is not None and (there := [server for server in able if server.view.id == bound]):
            return there[0]
        able = [server for server in able if not server.strict] or able
        if balanced and self._settings.pairs == "roles":
            able = [server for server in able if server.view.role is Role.PREFILL] or able
        return min(able, key=lambda server: server.timeline.done_s(job.prompt_s, job.now_s))

    def _largest(self) -> Server:
        return max(self._servers.values(), key=lambda server: server.kv_capacity_tokens)

    # --- where to cut ----------------------------------------------------------------------------------------------

    def _balance(self, job: Job, first: Server, second: Server) -> int:
        """Return the cut of Algorithm 1, or the nearest one that pays and that both workers can do."""
        if not (first.splits and second.splits):
            return job.prompt
        cut = balance(job, first.timeline, second.timeline, self._costs, self._settings)
        if cut < self._settings.least_tokens and second.alone:
            return 0
        return job.length if job.length - cut < self._settings.least_tokens and first.alone else cut

    def _cut(self, job: Job, first: Server, second: Server, cut: int) -> Placement:
        """Place tokens [0, cut) on `first` and the rest on `second` (line 11)."""
        if cut <= 0 or cut >= job.length:
            return self._whole(job, second if cut <= 0 else first)
        ahead, behind = legs(job, cut, self._costs)
        self._give(job, first, ahead)
        behind.ready_s = first.timeline.end_s(ahead) + self._handoff_s
        self._give(job, second, behind)
        return Placement(first.view.id, second.view.id, cut, f"split at {cut} of {job.length}")

    def _whole(self, job: Job, server: Server) -> Placement:
        """Place the whole request on one worker."""
        self._give(job, server, Leg(job.prompt_s, job.tokens, job.prompt, job.now_s))
        return Placement(server.view.id, server.view.id, job.prompt, f"whole, {job.length} tokens")

    def _give(self, job: Job, server: Server, leg: Leg) -> None:
        server.timeline.add(leg)
        if job.own_s is not None and leg.tokens:
            self._strict.setdefault(job.request, []).append(server)
            server.strict += 1
            if len(self._strict) > MOST_KNOWN:
                self._left(next(iter(self._strict)))
        self._given.setdefault(job.request, []).append((server, leg))
        if len(self._given) > MOST_KNOWN:
            self._given.popitem(last=False)

    def _left(self, request: str) -> None:
        for server in self._strict.pop(request, ()):
            server.strict -= 1

    def _take_back(self, request: Request) -> None:
        self._left(request.id)
        for server, leg in self._given.pop(request.id, ()):
            server.timeline.forget(leg)
