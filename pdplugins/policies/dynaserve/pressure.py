"""Whether a pool is underused, so that splits would not pay (section 3.1)."""

from __future__ import annotations

from pdplugins.policies.dynaserve.passes import PassCosts

WINDOW = 64
"""Arrivals over which the traffic is averaged."""


class Pressure:
    """The share of their time that workers would prefill if no request were split."""

    def __init__(self, costs: PassCosts) -> None:
        self._costs = costs
        self._prompt_s = self._tokens = 0.0
        self._gap_s = 0.0
        self._seen = 0
        self._last_s = 0.0

    def arrived(self, prompt_s: float, tokens: int, now_s: float) -> None:
        """Take in an arrival of which `tokens` of the prompt have to be computed, which adds `prompt_s` to passes."""
        weight = 1 / min(self._seen + 1, WINDOW)
        self._prompt_s += weight * (prompt_s - self._prompt_s)
        self._tokens += weight * (tokens - self._tokens)
        if self._seen:
            self._gap_s += 1 / min(self._seen, WINDOW) * (now_s - self._last_s - self._gap_s)
        self._seen, self._last_s = self._seen + 1, now_s

    def share(self, workers: int, batch: float, context_tokens: float) -> float:
        """Return the share, which is above 1 where the traffic is too much.

        :param batch: decodes of one worker, with `context_tokens` in all.
        """
        if self._gap_s <= 0:
            return 0.0
        decodes = int(batch + 0.5)
        free = max(1 - self._costs.decode_s(decodes, context_tokens) / self._costs.slo_s, 0.02)
        prompt_s = self._prompt_s + self._tokens * self._costs.dearer_s(decodes, context_tokens)
        return prompt_s / self._gap_s / workers / free
