"""Batch schedulers decide what one instance runs next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pdplugins.contracts.request import Request


@dataclass(frozen=True, slots=True)
class QueuedPrefill:
    """One request that waits for prefill on this instance."""

    request: Request
    remaining_tokens: int
    """Tokens of its prompt that still have to be computed."""
    queued_s: float
    """Time at which it joined the queue."""
    done_tokens: int | None = None
    """Tokens of its prompt that are in the KV cache already; None where the host does not say."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """The state of one instance just before its next step."""

    queue: tuple[QueuedPrefill, ...]
    """The requests that wait, in the engine's order."""
    decode_requests: int
    """Requests that decode."""
    decode_context_tokens: int
    """Sum of the contexts of all running decodes."""
    decode_tpots_s: tuple[float, ...] = ()
    """TPOT of each running decode that has one of its own, in any order; that of the others is the deployment's."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the next step of one instance runs."""

    prefill_tokens: Mapping[str, int]
    """By request id: the number of its prompt tokens to prefill in this step. Empty for a step that only decodes."""
    wait_s: float = 0.0
    """Seconds that the instance may wait idle for more requests before it must ask again."""
    reason: str = ""


@runtime_checkable
class FallsBackToBatches(Protocol):
    """A batch scheduler with a simpler one in place of itself: hosts ask that where the scheduler itself raises."""

    @property
    def fallback(self) -> BatchScheduler:
        """The simpler batch scheduler."""
        ...


class BatchScheduler(Protocol):
    """Decides what one instance runs in its next step.

    Where it raises, its own fallback composes that step, else the engine. The engine also does where the answer cannot
    be followed, and where for a minute it was idle while prompts waited.
    """

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step."""
        ...

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn from a step that has completed, which took `took_s` seconds."""
        ...
