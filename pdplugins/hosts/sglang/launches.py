"""What SGLang's steps run, and how long they take the requests that decode: from one token of theirs to the next.

A step without decodes delays those that run, unless SGLang mixes both in one step. For their time between tokens that
step and the decode step after it are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill
from pdplugins.contracts.request import Request

MOST_CHUNKS = 256
"""Prompts of the steps that are joined into one. Beyond that the first ones count as steps of their own."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that the engine has begun."""

    view: BatchView
    plan: BatchPlan
    """What it runs."""
    launched_s: float
    delays: bool = False
    """Whether requests decode that are not in it."""
    follows: bool = False
    """Whether the engine has not idled since the step before."""


class Gaps:
    """Joins the steps between two tokens of the requests that decode."""

    def __init__(self) -> None:
        self._delaying: tuple[Launched, float] | None = None
        """Steps that ended since the last token, as one, and the seconds that they took."""

    def ended(self, step: Launched, took_s: float) -> Iterator[tuple[Launched, float]]:
        """Take in a step that has ended; yield those that are complete, and the seconds of each."""
        before, self._delaying = self._delaying, None
        if before is not None and (step.delays or step.view.decode_requests):
            earlier, earlier_s = before
            if len(earlier.view.queue) + len(step.view.queue) <= MOST_CHUNKS:
                step, took_s, before = joined(earlier, step), earlier_s + took_s, None
        if before is not None:
            yield before
        if step.delays:
            self._delaying = step, took_s
        else:
            yield step, took_s


def launched(batch: Any, scheduler: Any, now_s: float) -> Launched | None:
    """Return what `batch` runs; None when it is neither prefill nor decode."""
    follows = scheduler.last_batch is not None
    if batch.forward_mode.is_decode():
        return Launched(_decodes(batch.reqs, ()), BatchPlan({}), now_s, follows=follows)
    if not batch.forward_mode.is_extend():
        return None
    decoding = batch.decoding_reqs or []
    prompts = batch.reqs[: len(batch.reqs) - len(decoding)]
    chunks = list(zip(prompts, batch.extend_lens, batch.prefix_lens, strict=False))
    waiting = tuple(
        QueuedPrefill(Request(request.rid, now_s, done + tokens), tokens, now_s, done)
        for request, tokens, done in chunks
    )
    plan = BatchPlan({request.rid: tokens for request, tokens, _ in chunks})
    delays = bool(scheduler.running_batch.reqs) and not decoding
    return Launched(_decodes(decoding, waiting), plan, now_s, delays, follows)


def joined(first: Launched, second: Launched) -> Launched:
    """Return two steps as one, with the decodes of the second. Two chunks of one prompt are one chunk."""
    tokens = dict(first.plan.prefill_tokens)
    chunks = {chunk.request.id: chunk for chunk in first.view.queue}
    for chunk in second.view.queue:
        name, more = chunk.request.id, second.plan.prefill_tokens[chunk.request.id]
        if (begun := chunks.get(name)) is None:
            chunks[name], tokens[name] = chunk, more
        else:
            tokens[name] += more
            chunks[name] = replace(chunk, remaining_tokens=tokens[name], done_tokens=begun.done_tokens)
    return replace(second, view=replace(second.view, queue=tuple(chunks.values())), plan=BatchPlan(tokens))


def _decodes(requests: Sequence[Any], waiting: tuple[QueuedPrefill, ...]) -> BatchView:
    return BatchView(waiting, len(requests), sum(request.seqlen for request in requests))
