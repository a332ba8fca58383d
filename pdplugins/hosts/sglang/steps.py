"""Which role the next step of the engine works for, and how SGLang's own methods compose it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pdplugins.hosts.sglang.handovers import HandOvers
from pdplugins.hosts.sglang.roles import Classifier, EngineRole
from pdplugins.hosts.sglang.scope import Scopes
from pdplugins.hosts.sglang.turns import Turns

DECODE, LOCAL, PREFILL = EngineRole.DECODE, EngineRole.LOCAL, EngineRole.PREFILL


class Steps:
    """Composes the steps of a dual-role engine."""

    def __init__(self, scopes: Scopes, classifier: Classifier, turns: Turns) -> None:
        self._scopes = scopes
        self._classifier = classifier
        self._turns = turns
        self._hand_overs = HandOvers()
        self.hold_prefill = False
        """Whether SGLang may compose no prefill now: a local batch that has run joins the running one, no more."""

    def next_batch(self, decode_step: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        """Return SGLang's plan of the next step.

        :param decode_step: ``decode_step(scheduler, running_batch)`` composes the steps of a decode server.
        """
        with self._scopes.enter(PREFILL):
            self._hand_overs.queue(scheduler, scheduler.disagg_prefill_bootstrap_queue.pop_bootstrapped())
            scheduler.process_disagg_prefill_inflight_queue()
        last = self.batch_role(scheduler.last_batch)
        order = self._order(scheduler, running_batch, last)
        if last is not DECODE:  # what it ran must join or be sent, whoever is next
            plan = self._settle(last, order[0], scheduler, running_batch)
            if plan.batch_to_run is not None:
                if order[0] is last:
                    self._turns.tried(last)
                return self._counted(scheduler, plan)
            running_batch = plan.running_batch
        self._turns.tried(order[0])
        for role in order:
            plan = self._compose(role, decode_step, scheduler, running_batch)
            if plan.batch_to_run is not None:
                self._turns.tried(role)
                break
            running_batch = plan.running_batch
        return self._counted(scheduler, plan, joined=role is DECODE)

    def batch_role(self, batch: Any) -> EngineRole:
        """Return the role of a batch: prefill steps have the role of their requests, all others are decode steps."""
        if batch is None or not batch.reqs or not batch.forward_mode.is_extend():
            return DECODE
        return PREFILL if self._classifier.role_of(batch.reqs[0]) is PREFILL else LOCAL

    def _order(self, scheduler: Any, running_batch: Any, last: EngineRole) -> list[EngineRole]:
        chunked = scheduler.chunked_req
        return self._turns.order(
            chunk=None if chunked is None else self._classifier.role_of(chunked),
            waiting=frozenset(self._beginning(scheduler, running_batch)),
            decodes=bool(scheduler.waiting_queue) or not running_batch.is_empty() or last is LOCAL,
            hands_over=self._may_hand_over(scheduler),
        )

    def _beginning(self, scheduler: Any, running_batch: Any) -> Iterator[EngineRole]:
        """Yield the queues of which a prompt may begin.

        While a retracted request waits for KV cache that the running ones will free, no local prompt takes it away.
        """
        retracted = bool(scheduler.disagg_decode_prealloc_queue.retracted_queue) and not running_batch.is_empty()
        for role in (LOCAL, PREFILL):
            if self._scopes.peek(role, "waiting_queue") and not (retracted and role is LOCAL):
                yield role

    def _may_hand_over(self, scheduler: Any) -> bool:
        """Tell whether a hand-over may go between two chunks.

        None goes while the prompt in chunks is to be aborted: SGLang looks for it where the step hides it.
        """
        if getattr(scheduler, "_pending_chunked_abort_req", None) is not None:
            return False
        return bool(self._hand_overs.waiting(self._scopes.peek(PREFILL, "waiting_queue")))

    def _settle(self, last: EngineRole, following: EngineRole, scheduler: Any, running_batch: Any) -> Any:
        """Finish the prefill step before, in SGLang's way: this may already compose the next step."""
        if last is PREFILL and following is PREFILL:
            with self._scopes.enter(PREFILL):
                return scheduler.get_next_disagg_prefill_batch_to_run(running_batch, scheduler.last_batch)
        if last is PREFILL:
            with self._scopes.enter(PREFILL), self._own_chunk(scheduler, PREFILL):
                scheduler.process_prefill_chunk(last_batch=scheduler.last_batch, running_batch=running_batch)
            return no_prefill(running_batch)
        self.hold_prefill = following is not LOCAL
        try:
            return self._local(scheduler, running_batch, scheduler.last_batch)
        finally:
            self.hold_prefill = False

    def _compose(self, role: EngineRole, decode_step: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        if role is LOCAL:
            return self._local(scheduler, running_batch, None)
        with self._own_chunk(scheduler, role) as other:
            if role is DECODE:
                with self._place_kept(scheduler, other):
                    return decode_step(scheduler, running_batch)
            with self._scopes.enter(PREFILL):
                if other is None:
                    return scheduler.get_next_disagg_prefill_batch_to_run(running_batch, None)
                with self._hand_overs.alone(scheduler, other):
                    return scheduler.get_next_disagg_prefill_batch_to_run(running_batch, None)

    @contextmanager
    def _own_chunk(self, scheduler: Any, role: EngineRole) -> Iterator[Any]:
        """Hide the prompt in the middle of its chunks, and yield it, where it is none of `role`; else yield None.

        SGLang would take it for one of the step that it composes.
        """
        chunked = scheduler.chunked_req
        if chunked is None or self._classifier.role_of(chunked) is role:
            yield None
            return
        scheduler.chunked_req = None
        try:
            yield chunked
        finally:
            scheduler.chunked_req = chunked

    @contextmanager
    def _place_kept(self, scheduler: Any, chunked: Any) -> Iterator[None]:
        """Let decodes that join leave a place for a local prompt in the middle of its chunks, if `chunked` is one.

        It decodes here too, and may share steps with decodes before that. SGLang's buffers have a row for each place.
        """
        kept = int(chunked is not None and self._classifier.role_of(chunked) is LOCAL)
        scheduler.max_running_requests -= kept
        try:
            yield
        finally:
            scheduler.max_running_requests += kept

    def _local(self, scheduler: Any, running_batch: Any, last_batch: Any) -> Any:
        """Run SGLang's scheduler of a server that is not disaggregated: a prefill, or else a decode step."""
        running_batch.batch_is_full = False  # other roles take and free KV cache without saying so here
        with self._scopes.enter(LOCAL):
            return scheduler.get_next_batch_to_run(running_batch, last_batch)

    def _counted(self, scheduler: Any, plan: Any, *, joined: bool = False) -> Any:
        """Count the step. While decodes wait to join, only a step of theirs is their turn.

        :param joined: whether the step is that of a decode server, in which those join that find a place.
        """
        batch = plan.batch_to_run
        if batch is not None:
            left_out = bool(scheduler.waiting_queue) and not joined
            self._turns.ran(prefill=left_out or (batch.forward_mode.is_extend() and not batch.decoding_reqs))
        return plan


def no_prefill(running_batch: Any) -> Any:
    """Return SGLang's plan that has nothing to prefill."""
    from sglang.srt.managers.schedule_batch import NextBatchPlan  # noqa: PLC0415 - only inside SGLang

    return NextBatchPlan(batch_to_run=None, running_batch=running_batch)
