"""Max Running Tokens (Section 5.3), at the mean context of the load: what decode steps hold inside the TPOT SLO."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.deployment import Deployment
from pdplugins.policies._common import largest_within

MOST_TOKENS = 10**9
"""More than any KV cache holds: where the search for Max Running Tokens ends."""
KEEP = 0.999
"""What the weight of all earlier requests is multiplied by at each new one: about the last thousand count."""
GUESS_STEPS = 10_000.0
"""Decode steps that the first guess counts for, so that the first few requests do not decide alone."""
CHANGE = 1.25
"""How far the mean must be from the value in use, as a ratio, before it replaces it."""


class LoadContext:
    """The mean context of a request in a decode step, over the traffic seen so far.

    A request takes part in as many steps as it has output tokens, and its context grows by one token in each. So an
    answer counts with its prompt and half of itself, weighted by its length.
    """

    __slots__ = ("_steps", "_sum", "tokens")

    def __init__(self, guess_tokens: float) -> None:
        self.tokens = guess_tokens
        """The value in use. It stays until the mean is far from it, so that limits do not follow each request."""
        self._steps = GUESS_STEPS
        self._sum = GUESS_STEPS * guess_tokens

    def learn(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Note a request that has ended. Return whether the value in use has changed."""
        self._steps = KEEP * self._steps + output_tokens
        self._sum = KEEP * self._sum + output_tokens * (prompt_tokens + output_tokens / 2)
        mean = self._sum / self._steps
        if self.tokens <= CHANGE * mean and mean <= CHANGE * self.tokens:
            return False
        self.tokens = mean
        return True


@dataclass(slots=True)
class DecodeLimits:
    """What decode steps of one instance may hold inside the TPOT SLO, and how fast decode then is.

    All instances of one TP size share one object. It changes when the load's context has changed.
    """

    requests: int
    """The largest batch."""
    tokens: int
    """Max Running Tokens of Algorithm 2, as far as the TPOT SLO limits it. The KV cache limits it too."""
    full_tokens: float
    """The same, or fewer where the largest batch is full before that, with the load's context."""
    empty_step_s: float
    """A step takes about this, and `token_s` for each token that it reads."""
    token_s: float

    def speed(self, tokens: float) -> float:
        """Return how many tokens steps over `tokens` tokens read per second: what decode delivers at that load."""
        return tokens / (self.empty_step_s + self.token_s * tokens)

    def take(self, other: DecodeLimits) -> None:
        """Become equal to `other`."""
        self.requests, self.tokens, self.full_tokens = other.requests, other.tokens, other.full_tokens
        self.empty_step_s, self.token_s = other.empty_step_s, other.token_s


def find_limits(deployment: Deployment, tp: int, context_tokens: float, own_tokens: int | None = None) -> DecodeLimits:
    """Find how many requests of `context_tokens` tokens one instance can decode inside the TPOT SLO; at least one.

    The batch grows up to `deployment.max_batch` requests of this mean context. If that still meets the SLO, only longer
    contexts count, up to the SLO.

    :param own_tokens: Max Running Tokens, where a setting gives it.
    """
    perf, tpot_s = deployment.perf, deployment.slo.tpot_s
    requests = largest_within(tpot_s, deployment.max_batch, lambda batch: perf.decode_step_s(batch, 0, tp))

    def step_s(tokens: float) -> float:
        batch = min(max(tokens / context_tokens, 1.0), deployment.max_batch)
        return perf.decode_step_s(batch, tokens / batch, tp)

    tokens = own_tokens or max(largest_within(tpot_s, MOST_TOKENS, step_s), int(context_tokens))
    requests = max(requests, 1)
    full_tokens, empty_s = min(float(tokens), requests * context_tokens), step_s(0)
    return DecodeLimits(requests, tokens, full_tokens, empty_s, max(step_s(full_tokens) - empty_s, 0.0) / full_tokens)
