"""How TensorRT-LLM starts prompts with data-parallel attention: one in every group, together.

All groups compute each step together, so a prompt in one of them holds up the others. `attention_dp_config` therefore
lets prompts wait until every group has one, for at most `timeout_iters` steps (TensorRT-LLM's technical blog 10, "ADP
Balance Strategy"). A group takes whole prompts, up to its own `max_num_tokens`.
"""

from __future__ import annotations

from pdplugins.contracts.batching import BatchPlan, BatchView, QueuedPrefill

TIMEOUT_STEPS = 60
"""InferenceMAX's `timeout_iters`; its `batching_wait_iters` is 0."""


class AttentionBalance:
    """Batch scheduler of one worker whose groups have requests of their own.

    TensorRT-LLM gives a new request to the group with the fewest. With a constant number of clients that is the group
    that the client's last request has left, so here every client stays in its group.

    :param groups: groups of data-parallel attention.
    :param group_tokens: most tokens of one group in one step.
    """

    def __init__(self, groups: int, group_tokens: int) -> None:
        self._tokens = group_tokens
        self._groups = groups
        self._group_of: dict[str, int] = {}
        self._waited = 0

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        """Start prompts in every group, or none."""
        waiting: list[list[QueuedPrefill]] = [[] for _ in range(self._groups)]
        for prompt in view.queue:
            waiting[self._group(prompt)].append(prompt)
        all_decode = view.decode_requests >= self._groups
        if all_decode and not all(waiting) and self._waited < TIMEOUT_STEPS:
            self._waited += any(waiting)
            return BatchPlan({})
        self._waited = 0
        room = self._tokens - view.decode_requests // self._groups
        return BatchPlan({name: tokens for own in waiting for name, tokens in _fitting(own, room)})

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        """Learn nothing."""

    def _group(self, prompt: QueuedPrefill) -> int:
        client = prompt.request.session or prompt.request.id
        return self._group_of.setdefault(client, len(self._group_of) % self._groups)


def _fitting(prompts: list[QueuedPrefill], room: int) -> list[tuple[str, int]]:
    """Return the first prompts that fit whole into `room` tokens, with their tokens."""
    found = []
    for prompt in prompts:
        room -= prompt.remaining_tokens
        if room < 0:
            break
        found.append((prompt.request.id, prompt.remaining_tokens))
    return found
