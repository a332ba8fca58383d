"""What passes cost, by the profile: the tables of the execution predictor (section 4.1)."""

from __future__ import annotations

from functools import partial

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies._common import largest_within
from pdplugins.policies.dynaserve.steps import grid_steps, shared_tp

ALONE_TOKENS = 2048
"""Prompt tokens of a pass in which nothing decodes."""
CONTEXTS = (256.0, 4096.0)
"""Mean contexts between which the time of a decode pass is taken as linear, and beyond them too."""


class PassCosts:
    """Seconds that prompts and decodes add to the passes of a worker. All workers of the pool are taken as equal."""

    def __init__(self, deployment: Deployment) -> None:
        perf, tp = deployment.perf, shared_tp(deployment)
        self.slo_s = deployment.slo.tpot_s
        """Longest pass in which something decodes: prompts get what the decodes leave of it (Algorithm 2)."""
        self.kv_tokens = deployment.kv_tokens or perf.kv_capacity_tokens(deployment.decode_tp)
        self.most_batch = deployment.max_batch
        steps = grid_steps(perf, tp)
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

    def _line(self, batch: int) -> tuple[float, float]:
        """Return the time of a pass over the total context, as base and slope."""
        low, high = CONTEXTS
        low_s, high_s = self._decode_s(batch, low), self._decode_s(batch, high)
        slope = (high_s - low_s) / (high - low)
        return low_s - slope * low, slope / batch
