"""The global scheduler (Algorithm 1): splits each request so that both workers finish at the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import by_role
from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.lengths import build_predictor
from pdplugins.policies.dynaserve.predict import NONE, ExecutionPredictor, Work

LONGEST = 10_000_000
"""Longer predictions are cut to this, so that sums stay finite. No model has such a long context."""


class Server:
    """One worker and its unfinished work: the clocks of Algorithm 1."""

    __slots__ = ("until_s", "view", "work")

    def __init__(self, view: WorkerView) -> None:
        self.view = view
        self.work = Work()
        self.until_s = 0.0
        """When it will have done all of its work."""

    def advance(self, predictor: ExecutionPredictor, now_s: float) -> None:
        """Remove the work that it should have done by now. Prompts that it reports as waiting are added again.

        An idle worker may still have work to come, because a second micro-request starts only when the first is done.
        """
        work, load = self.work, self.view.load
        before_s = work.with_s(NONE)
        work.scale(max(self.until_s - now_s, 0.0) / before_s if before_s > 0 else 0.0)
        requests, tokens = load.queued_requests, load.queued_tokens
        if is_number(requests) and is_number(tokens) and tokens > 0:
            prompts = max(requests, 1.0)
            mean = int(min(tokens / prompts, LONGEST))
            waits = predictor.span(mean, 0, mean)
            work.prompt_s = max(work.prompt_s, prompts * waits.prompt_s)
            work.prompt_passes_s = max(work.prompt_passes_s, prompts * waits.prompt_passes_s)

    def commit(self, more: Work, now_s: float) -> None:
        """Add `more` work."""
        self.work.add(more)
        self.until_s = now_s + self.work.with_s(NONE)


class DynaServeRouter:
    """Splits each request between two workers. A decision costs `probes` predictions, however many workers there are.

    Each part goes to the least busy of the next `choices` workers in turn. The paper uses round robin.
    """

    def __init__(self, settings: DynaServeRouterSettings, deployment: Deployment) -> None:
        self._settings = settings
        self._predictor = ExecutionPredictor(deployment)
        self._lengths = build_predictor(settings)
        self._workers: tuple[WorkerView, ...] | None = None
        self._servers: dict[str, Server] = {}
        self._pools: tuple[Sequence[Server], Sequence[Server]] = ((), ())
        self._turns = 0

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a request: the split of Algorithm 1 between the next pair of workers."""
        if workers is not self._workers:
            self._see(workers)
        prompt = max(request.prompt_tokens, 1)
        predicted = self._lengths.predict(request)
        length = prompt + (int(min(max(predicted, 1), LONGEST)) if is_number(predicted) else 1)
        length += self._settings.margin_tokens
        first, second = self._pair(request)
        if not _holds(second, length):
            first = second = first if _holds(first, length) else self._largest()
        first.advance(self._predictor, now_s)
        if first is second:
            return self._whole(prompt, length, first, now_s)
        second.advance(self._predictor, now_s)
        split = self._split(prompt, length, first, second) if _splits(first) and _splits(second) else prompt
        if split < self._settings.least_tokens:
            return self._whole(prompt, length, second, now_s)
        if length - split < self._settings.least_tokens:
            return self._whole(prompt, length, first, now_s)
        first.commit(self._predictor.span(prompt, 0, split), now_s)
        second.commit(self._predictor.span(prompt, split, length), now_s)
        return Placement(first.view.id, second.view.id, split, f"split at {split} of {length}")

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Return `placement`, which was complete at arrival."""
        return placement

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Teach the output-length predictor. Only a complete answer counts, as others are cut short."""
        if outcome.ending is Ending.FINISHED:
            self._lengths.learn(request, outcome.output_tokens)

    # --- the pair --------------------------------------------------------------------------------------------------

    def _see(self, workers: tuple[WorkerView, ...]) -> None:
        pools = by_role("dynaserve", workers)
        known = self._servers
        self._servers = {view.id: known.get(view.id) or Server(view) for view in workers}
        servers = list(self._servers.values())
        for server, view in zip(servers, workers, strict=True):
            server.view = view
        self._workers = workers
        if self._settings.pairs == "roles":
            first, second = ([self._servers[view.id] for view in pools[role]] for role in Role)
            self._pools = first or servers, second or servers
        else:
            self._pools = servers, servers

    def _pair(self, request: Request) -> tuple[Server, Server]:
        """Return the workers of the first and of the second micro-request; they are equal where only one can serve."""
        turn, self._turns = self._turns, self._turns + 1
        bound = self._servers.get(request.bound_worker) if request.bound_worker is not None else None
        first = bound or self._next(self._pools[0], turn, None)
        return first, self._next(self._pools[1], turn, first)

    def _next(self, pool: Sequence[Server], turn: int, other: Server | None) -> Server:
        choices = min(self._settings.choices, len(pool))
        start = turn * choices
        candidates = [pool[(start + index) % len(pool)] for index in range(choices)]
        if other in candidates:
            candidates.remove(other)
            if not candidates:
                candidates = [pool[(start + choices) % len(pool)]]
        return min(candidates, key=_until) if len(candidates) > 1 else candidates[0]

    def _largest(self) -> Server:
        return max(self._servers.values(), key=lambda server: server.view.kv_capacity_tokens)

    # --- Algorithm 1 -----------------------------------------------------------------------------------------------

    def _split(self, prompt: int, length: int, first: Server, second: Server) -> int:
        """Return the token at which both workers would finish together (lines 3 to 10).

        Of all splits that were tried, this is the one whose later worker finishes earliest. The last split that the
        search tries may be worse, because the time jumps between the last prompt token and the first decoded one.
        """
        span, settings = self._predictor.span, self._settings
        ratio, low, high = prompt / length, 0.0, 1.0
        best, best_s = prompt, math.inf
        for _ in range(settings.probes):
            split = math.ceil(ratio * length)
            t1 = first.work.with_s(span(prompt, 0, split))
            t2 = second.work.with_s(span(prompt, split, length))
            later_s = t1 if t1 > t2 else t2
            if later_s < best_s:
                best, best_s = split, later_s
            if abs(t1 - t2) < settings.tolerance_s:
                return split
            if t1 > t2:
                high = ratio
            else:
                low = ratio
            ratio = (low + high) / 2
        if low == 0.0 or high == 1.0:  # the same worker finishes first at every split, so it gets the whole request
            return 0 if low == 0.0 else length
        return best

    def _whole(self, prompt: int, length: int, server: Server, now_s: float) -> Placement:
        """Place the whole request on one worker."""
        server.commit(self._predictor.span(prompt, 0, length), now_s)
        return Placement(server.view.id, server.view.id, prompt, "whole")


def _until(server: Server) -> float:
    return server.until_s


def _splits(server: Server) -> bool:
    """Return whether a worker can take part of a request split at any token; assumed where the host does not say."""
    return (known := server.view.capabilities) is None or known.splits


def _holds(server: Server, tokens: int) -> bool:
    """Return whether the KV cache of a worker can hold a request of `tokens` tokens."""
    return server.view.kv_capacity_tokens >= tokens
