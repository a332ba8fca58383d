"""What passes cost, by the profile: the tables of the execution predictor (section 4.1)."""

from __future__ import annotations

from functools import partial

from pdplugins.contracts.batching import BatchView
from pdplugins.contracts.deployment import Deployment
from pdplugins.policies._common import largest_within, reachable
from pdplugins.policies.dynaserve.batching import Step
from pdplugins.policies.dynaserve.table import ProfileTable

ALONE_TOKENS = 2048
"""Prompt tokens of a pass in which nothing decodes."""
DEARER = 0.5
"""Prompt tokens count as dearer beside decodes where they are so by this share: less is lost in the averages."""
MOST_TOKENS = 8192
"""Prompt tokens of any pass."""
CONTEXTS = (256.0, 4096.0)
"""Mean contexts between which the time of a decode pass is taken as linear, and beyond them too."""


class PassCosts:
    """Seconds that prompts and decodes add to the passes of a worker. All workers of the pool are taken as equal."""

    def __init__(self, deployment: Deployment) -> None:
        perf = deployment.perf
        self.slo_s = reachable(deployment).slo.tpot_s
        """Longest pass in which something decodes: prompts get what the decodes leave of it (Algorithm 2)."""
        self.kv_tokens = deployment.kv_tokens or perf.kv_capacity_tokens(deployment.decode_tp)
        self.most_batch = deployment.max_batch
        self._table = ProfileTable(deployment, 0.0)
        steps = self._table.steps
        self._knows_dense = steps.dense is not None
        self._attention_s = steps.attention
        """Attention of a prompt over its tokens; the whole prefill time where the profile does not know it."""
        dense_s = steps.dense or steps.alone
        chunk = max(largest_within(self.slo_s, ALONE_TOKENS, dense_s), 1)
        self._token_s = (dense_s(chunk) - dense_s(0)) / chunk
        """Seconds that a prompt token adds to a pass, without its attention to earlier ones."""
        self.alone = dense_s(ALONE_TOKENS) / ALONE_TOKENS / self._token_s if self._token_s else 1.0
        """How many times as long prompts take where nothing decodes: their passes read the weights for them alone."""
        self._decode_s = partial(perf.decode_step_s, tp=deployment.decode_tp)
        self._lines: list[tuple[float, float]] = [(0.0, 0.0)]

    def prompt_s(self, start: int, end: int) -> float:
        """Return the seconds that tokens [start, end) of a prompt add to their passes."""
        if start >= end:
            return 0.0
        dense_s, attention_s = (end - start) * self._token_s, self._attention_s(end) - self._attention_s(start)
        return dense_s + attention_s if self._knows_dense else max(dense_s, attention_s)

    def decode_s(self, batch: int, context_tokens: float) -> float:
        """Return the seconds of a pass of `batch` decodes with `context_tokens` in all and no prompt; 0 for none."""
        lines = self._lines
        while batch >= len(lines):
            lines.append(self._line(len(lines)))
        base, slope = lines[batch]
        return base + slope * context_tokens

    def dearer_s(self, batch: int, context_tokens: float) -> float:
        """Return by how many seconds a prompt token takes longer beside `batch` decodes than `prompt_s` says.

        It is 0 where that is a small part of the whole.

        What the decodes leave of a pass goes to as many tokens as fit by Algorithm 2. Where few do, each takes longer
        than one of the large passes by which `prompt_s` counts.
        """
        if not batch:
            return 0.0
        step = Step(self._table, BatchView((), batch, int(context_tokens)), self.slo_s)
        tokens = max(step.max_prefill_allowed(0, MOST_TOKENS), 1)
        more_s = (self.slo_s - step.predicted_s()) / tokens - self._token_s
        return more_s if more_s > DEARER * self._token_s else 0.0

    def _line(self, batch: int) -> tuple[float, float]:
        """Return the time of a pass over the total context, as base and slope."""
        low, high = CONTEXTS
        low_s, high_s = self._decode_s(batch, low), self._decode_s(batch, high)
        slope = (high_s - low_s) / (high - low)
        return low_s - slope * low, slope / batch
