"""Batch schedulers on a real engine: which requests SGLang's next prefill step may take, and how many tokens.

SGLang composes the step itself, from its waiting queue and within its chunk size. During that call the waiting queue
holds only the requests that the policy chose, in its order, and the chunk size is the tokens that the policy gave them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pdplugins.contracts.batching import BatchPlan, BatchScheduler, BatchView, QueuedPrefill
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Request, Terms
from pdplugins.hosts.sglang.hooking import Hook
from pdplugins.hosts.sglang.launches import Gaps, Launched, launched
from pdplugins.hosts.sglang.names import SCHEDULER
from pdplugins.hosts.sglang.prompts import done_tokens
from pdplugins.hosts.sglang.steps import no_prefill
from pdplugins.runtime.batching import SafeBatchScheduler
from pdplugins.runtime.decision import Fault, Journal
from pdplugins.runtime.faults import Tally, one_line

MOST_PAUSE_S = 1.0
"""A longer pause between two steps is no work of the engine's: somebody has paused it, or changed its weights."""
Asked = Callable[[str], Terms | None]


class BatchHooks:
    """Asks a batch scheduler before each prefill step of SGLang, and tells it how long the steps took.

    :param build: makes one scheduler, from whether the engine mixes prefill and decode in one step. The queue of each
        role has its own.
    :param clock: seconds, the clock of SGLang's own time stamps.
    :param asked: what a request asks for itself, by its name; None where it asks for nothing.
    :param journal: opens where decisions are written, at the first step; None for nowhere.
    :param burst: prefill steps in a row while requests decode; None where something else bounds them.
    """

    def __init__(
        self,
        build: Callable[[bool], BatchScheduler],
        clock: Callable[[], float] = time.perf_counter,
        asked: Asked = lambda name: None,
        journal: Callable[[], Journal | None] = lambda: None,
        burst: int | None = None,
    ) -> None:
        self._build = build
        self._journal = journal
        self._tally = Tally(Kind.BATCH_SCHEDULER)
        self._schedulers: dict[str, SafeBatchScheduler | None] = {}
        """By role; None where it cannot be built, which leaves SGLang its own steps."""
        self._clock = clock
        self._burst = burst
        self._in_a_row = 0
        """Prefill steps since the last one with decodes."""
        self._asked = asked
        self._run: deque[tuple[Launched | None, float | None]] = deque()
        """Steps whose results are not there yet, and when they ended, where that is known."""
        self._inside = False
        """Whether a step is being launched."""
        self._gaps = Gaps()
        self._ended_s = 0.0
        """When the last step ended."""
        self._waits: dict[str, tuple[float, list[str]]] = {}
        """By role: until when an idle engine waits for more requests than these."""

    def hooks(self) -> dict[str, Hook]:
        """Return each hook by the name of what it wraps."""
        return {
            SCHEDULER + "get_new_batch_prefill": self.new_prefill,
            SCHEDULER + "run_batch": self.run,
            SCHEDULER + "process_batch_result": self.completed,
        }

    def new_prefill(self, original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        """Compose the prefill of the next step within the policy's plan, if it is not the turn of those that decode."""
        if self._burst is not None and self._in_a_row >= self._burst and decodes(running_batch):
            return no_prefill(running_batch)
        view = view_of(scheduler, running_batch, self._asked)
        if not view.queue:
            return original(scheduler, running_batch)
        plan = first_decides(scheduler.attn_tp_group, lambda: self._planned(scheduler, running_batch, view))
        if plan is None:
            return original(scheduler, running_batch)
        if not plan.prefill_tokens:
            return no_prefill(running_batch)
        with window(scheduler, plan, view, mixed_with=len(running_batch.reqs)):
            return original(scheduler, running_batch)

    def _planned(self, scheduler: Any, running_batch: Any, view: BatchView) -> BatchPlan | None:
        """Return the policy's plan; an empty one for no prefill now, None for SGLang's own step."""
        now_s, role = self._clock(), str(scheduler.disaggregation_mode)
        until_s, known = self._waits.get(role, (0.0, []))
        if now_s < until_s and running_batch.is_empty() and waiting_ids(view) == known:
            return BatchPlan({})
        policy = self._scheduler(role, mixes=bool(scheduler.is_mixed_chunk))
        plan = None if policy is None else policy.next_batch(view, now_s)
        if plan is None or paged_tokens(plan, view, scheduler.page_size):
            return plan
        self._waits[role] = now_s + plan.wait_s, waiting_ids(view) if plan.wait_s else []
        stuck = running_batch.is_empty() and not plan.wait_s
        return None if stuck else BatchPlan({})

    def _scheduler(self, role: str, *, mixes: bool) -> SafeBatchScheduler | None:
        if role not in self._schedulers:
            self._schedulers[role] = None
            try:
                self._schedulers[role] = SafeBatchScheduler(
                    self._build(mixes), journal=self._journal(), tally=self._tally
                )
            except Exception as error:
                self._tally.fault(Fault.POLICY_ERROR, f"it cannot be built: {one_line(error)}", error)
        return self._schedulers[role]

    def run(self, original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **keywords: Any) -> Any:
        """Note what a step runs before it is launched."""
        if self._inside:  # SGLang runs another batch within this one; only the outer one has results
            return original(scheduler, batch, *more, **keywords)
        step = launched(batch, scheduler, self._clock())
        if step is not None:
            self._in_a_row = self._in_a_row + 1 if step.delays else 0
        self._inside = True
        try:
            return original(scheduler, batch, *more, **keywords)
        finally:
            self._inside = False
            self._run.append((step, self._clock() if scheduler.device == "cpu" else None))

    def completed(self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
        """Let the policy learn from a step once its results are there.

        Steps run one after the other, so one takes from the end of the step before until its results are processed, or
        from its launch where the engine has idled. On a GPU the launch alone says nothing: it returns before the step
        has run. On a CPU it returns when the step has ended, and the results wait until the next step has run too.
        Steps that delay decodes count with the decode step after them.
        """
        done = original(scheduler, batch, result)
        step, ended_s = self._run.popleft() if self._run else (None, None)
        now_s = self._clock() if ended_s is None else ended_s
        if step is not None:
            follows = step.follows and step.launched_s - self._ended_s <= MOST_PAUSE_S
            took_s = now_s - (self._ended_s if follows else max(step.launched_s, self._ended_s))
            for whole, whole_s in self._gaps.ended(step, took_s):
                for policy in filter(None, self._schedulers.values()):
                    policy.on_step(whole.view, whole.plan, whole_s)
        self._ended_s = now_s
        return done


def view_of(scheduler: Any, running_batch: Any, asked: Asked) -> BatchView:
    """Return what a batch scheduler sees of the engine, the prompt in the middle of its chunks first."""
    chunked = scheduler.chunked_req
    started = () if chunked is None else (queued(chunked, done_tokens(chunked), asked),)
    waiting = (queued(request, request.num_matched_prefix_tokens, asked) for request in scheduler.waiting_queue)
    running = running_batch.reqs
    terms = (asked(request.rid) for request in running)
    tpots = tuple(one.tpot_s for one in terms if one is not None and one.tpot_s is not None)
    return BatchView((*started, *waiting), len(running), sum(request.seqlen for request in running), tpots)


def decodes(running_batch: Any) -> bool:
    """Tell whether some request decodes: scoring and embedding end with their prefill, though they are listed here."""
    return not (running_batch.is_empty() or running_batch.is_prefill_only)


def waiting_ids(view: BatchView) -> list[str]:
    """Return the names of the requests that wait for prefill."""
    return [prompt.request.id for prompt in view.queue]


def queued(request: Any, done: int, asked: Asked) -> QueuedPrefill:
    """Return a request of SGLang as one that waits for prefill, `done` tokens of it being in the KV cache."""
    queued_s = request.time_stats.wait_queue_entry_time
    remaining = max(request.seqlen - done, 1)
    seen = Request(request.rid, queued_s, request.seqlen, terms=asked(request.rid))
    return QueuedPrefill(seen, remaining, queued_s, done)


def first_decides(group: Any, decide: Callable[[], BatchPlan | None]) -> BatchPlan | None:
    """Return what the first rank of a tensor-parallel group decides.

    Every rank composes its steps by itself, and they have to be the same ones. What a policy decides depends on the
    clock of its process.
    """
    if group.world_size == 1:
        return decide()
    shared: BatchPlan | None = group.broadcast_object(decide() if group.rank_in_group == 0 else None, src=0)
    return shared


def paged_tokens(plan: BatchPlan, view: BatchView, page: int) -> int:
    """Return the tokens of `plan` in whole pages of KV cache, as SGLang counts them: only a prompt's last may be part.

    :param page: tokens of a page.
    """
    page, tokens = max(page, 1), 0
    rest = {prompt.request.id: prompt.remaining_tokens for prompt in view.queue}
    for name, count in plan.prefill_tokens.items():
        ends = count >= rest.get(name, count + 1)
        tokens += (-(-count // page) if ends else count // page) * page
    return tokens


@contextmanager
def window(scheduler: Any, plan: BatchPlan, view: BatchView, mixed_with: int) -> Iterator[None]:
    """Show SGLang only what `plan` chose, in its order, and as many tokens as it gave.

    A prompt in the middle of its chunks goes first, chosen or not: SGLang can hold only one such prompt.

    :param mixed_with: running requests, which a mixed step counts as tokens of its chunk.
    """
    queue: Sequence[Any] = scheduler.waiting_queue
    by_id = {request.rid: request for request in queue}
    chosen = [by_id[name] for name, tokens in plan.prefill_tokens.items() if tokens > 0 and name in by_id]
    size = scheduler.chunked_prefill_size
    budget = paged_tokens(plan, view, scheduler.page_size) + (mixed_with if scheduler.is_mixed_chunk else 0)
    scheduler.waiting_queue = chosen
    scheduler.chunked_prefill_size = None if size is None else min(size, budget)
    try:
        yield
    finally:
        scheduler.chunked_prefill_size = size
        left = scheduler.waiting_queue
        started = {id(request) for request in chosen} - {id(request) for request in left}
        known = {id(request) for request in queue}
        new = [request for request in left if id(request) not in known]
        scheduler.waiting_queue = [request for request in queue if id(request) not in started] + new
