"""The local scheduler (Section 5.4): each step has all decodes, and chunks of prefill in order fill the rest."""

from __future__ import annotations

from pdplugins.contracts.batching import BatchPlan, BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies.arrow.config import ArrowBatchSettings


class ArrowBatchScheduler:
    """Fills each step of one instance up to the step size, so that a flipped instance starts its new work at once."""

    def __init__(self, settings: ArrowBatchSettings, deployment: Deployment) -> None:
        self._step_tokens = settings.step_tokens

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Compose the next step: one token for every decode, then prompts in order of arrival, cut to fit."""
        free_tokens = self._step_tokens - max(view.decode_requests, 0)
        chunks: dict[str, int] = {}
        for prefill in view.queue:
            if free_tokens <= 0:
                break
            chunks[prefill.request.id] = tokens = min(prefill.remaining_tokens, free_tokens)
            free_tokens -= tokens
        return BatchPlan(chunks)

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Do nothing: the size of a step is fixed."""
