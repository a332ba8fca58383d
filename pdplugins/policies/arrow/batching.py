"""The local scheduler (Section 5.4): each step has all decodes, and the rest of it is chunks of prefill in order."""

from __future__ import annotations

from pdplugins.contracts.batching import BatchPlan, BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.arrow.config import ArrowBatchSettings


class ArrowBatchScheduler:
    """Fills each step of one instance up to its size, so that a flipped instance begins its new work at once."""

    def __init__(self, settings: ArrowBatchSettings, deployment: Deployment) -> None:
        self._step_tokens = settings.step_tokens

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step: every decode is one token of it, then prompts are cut to fit, first come first."""
        free_tokens = self._step_tokens - max(view.decode_requests, 0)
        chunks: dict[str, int] = {}
        for prefill in view.queue:
            if free_tokens <= 0:
                break
            chunks[prefill.request.id] = tokens = min(prefill.remaining_tokens, free_tokens)
            free_tokens -= tokens
        return BatchPlan(chunks)

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn nothing: the size of a step is given."""
