"""Predictors of the output length (section 5). Some learn from the requests that have finished."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Protocol

from pdplugins.contracts.request import Request
from pdplugins.policies._common import SplitMix64
from pdplugins.policies.dynaserve.config import DynaServeRouterSettings


class LengthPredictor(Protocol):
    """Predicts output lengths."""

    def predict(self, request: Request) -> float:
        """Return the output tokens that `request` will need, without a margin."""
        ...

    def learn(self, request: Request, output_tokens: int) -> None:
        """Learn from a request that has finished."""
        ...


class Oracle:
    """Returns the host's prediction, or `prior_tokens` where there is none."""

    def __init__(self, prior_tokens: int) -> None:
        self._prior = prior_tokens

    def predict(self, request: Request) -> float:
        """Return the host's prediction."""
        predicted = request.predicted_output_tokens
        return self._prior if predicted is None else predicted

    def learn(self, request: Request, output_tokens: int) -> None:
        """Do nothing."""


class Noisy(Oracle):
    """Returns the host's prediction plus a normally distributed error: the sensitivity analysis of Table 4."""

    def __init__(self, prior_tokens: int, noise_tokens: float, seed: int) -> None:
        super().__init__(prior_tokens)
        self._sigma = noise_tokens
        self._uniform = SplitMix64(seed).uniform

    def predict(self, request: Request) -> float:
        """Return the host's prediction with an error."""
        radius = math.sqrt(-2 * math.log(1 - self._uniform()))  # Box and Muller, 1958
        return max(super().predict(request) + self._sigma * radius * math.cos(math.tau * self._uniform()), 1.0)


class Quantile:
    """A quantile of the last outputs whose prompts had a similar length, within a power of two."""

    def __init__(self, prior_tokens: int, quantile: float, window: int) -> None:
        self._prior = prior_tokens
        self._quantile = quantile
        self._window = window
        self._recent: dict[int, deque[int]] = {}
        self._sorted: dict[int, list[int]] = {}

    def predict(self, request: Request) -> float:
        """Return the quantile of the prompt's bucket, or of the nearest bucket with any request."""
        bucket = request.prompt_tokens.bit_length()
        if bucket not in self._sorted:
            if not self._sorted:
                return self._prior
            bucket = min(self._sorted, key=lambda other: (abs(other - bucket), other))
        lengths = self._sorted[bucket]
        return lengths[int(self._quantile * len(lengths))]

    def learn(self, request: Request, output_tokens: int) -> None:
        """Add the length to its bucket, in place of the oldest one there."""
        bucket = request.prompt_tokens.bit_length()
        recent, lengths = self._recent.setdefault(bucket, deque()), self._sorted.setdefault(bucket, [])
        if len(recent) == self._window:
            del lengths[bisect_left(lengths, recent.popleft())]
        recent.append(output_tokens)
        insort(lengths, output_tokens)


class Mean:
    """The mean of the last requests."""

    def __init__(self, prior_tokens: int, window: int) -> None:
        self._prior = prior_tokens
        self._recent: deque[int] = deque()
        self._window = window
        self._sum = 0

    def predict(self, request: Request) -> float:
        """Return the mean."""
        return self._sum / len(self._recent) if self._recent else self._prior

    def learn(self, request: Request, output_tokens: int) -> None:
        """Add the length, in place of the oldest one."""
        if len(self._recent) == self._window:
            self._sum -= self._recent.popleft()
        self._recent.append(output_tokens)
        self._sum += output_tokens


def build_predictor(settings: DynaServeRouterSettings) -> LengthPredictor:
    """Return the predictor that the settings name."""
    match settings.predictor:
        case "oracle":
            return Oracle(settings.prior_tokens)
        case "noisy":
            return Noisy(settings.prior_tokens, settings.noise_tokens, settings.seed)
        case "mean":
            return Mean(settings.prior_tokens, settings.window)
        case "quantile":
            return Quantile(settings.prior_tokens, settings.quantile, settings.window)
