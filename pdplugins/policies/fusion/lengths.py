"""Mean lengths of prompts and outputs, over recent requests."""

from __future__ import annotations

from collections import OrderedDict

from pdplugins.contracts.request import Request

MOST_OPEN = 4096
"""Requests whose order is remembered."""
FADE = 0.01
"""Weight of one request in the means; more at first, so that all requests so far weigh the same."""
PRIOR = 4
"""Outputs that the prior counts for."""
JUDGED = 16
"""Outputs after which the prior is judged."""
FAR = 1.5
"""A prior that makes the mean context so many times too long, or too short, counts no longer."""


class MeanLengths:
    """Short outputs end first, so the first ones to end say too little.

    An output counts only when all requests that went on before it have ended, or too many have come since.
    """

    def __init__(self, prior_tokens: int) -> None:
        self.isl: float | None = None
        """Prompt tokens that must be computed; None while nothing came."""
        self.history = 0.0
        """Prompt tokens that the rounds of sessions have in a KV cache already."""
        self.osl = self.prior = float(prior_tokens)
        self._prompts = 0
        self._outputs = PRIOR
        self._open: OrderedDict[str, int | None] = OrderedDict()
        """Requests in the order they went on, each with its output once it has ended."""

    def began(self, request: Request) -> None:
        """Learn the length of a prompt that goes on. A second call for the same request changes nothing."""
        if request.id in self._open:
            return
        tokens = float(max(request.prompt_tokens - request.history_tokens, 1))
        self._prompts += 1
        weight = _weight(self._prompts)
        self.isl = tokens if self.isl is None else self.isl + weight * (tokens - self.isl)
        self.history += weight * (request.prompt_tokens - tokens - self.history)
        self._open[request.id] = None
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
            self._count()

    def knows(self, request: Request) -> bool:
        """Tell whether a request has gone on, and not ended."""
        return self._open.get(request.id, 0) is None

    def ended(self, request: Request, output_tokens: int | None) -> None:
        """Learn the length of an output; None for a request that did not finish."""
        if request.id in self._open:
            self._open[request.id] = -1 if output_tokens is None else output_tokens
            self._count()

    def _count(self) -> None:
        while self._open and (tokens := next(iter(self._open.values()))) is not None:
            self._open.popitem(last=False)
            if tokens >= 0:
                self._outputs += 1
                self.osl += _weight(self._outputs) * (tokens - self.osl)
                if self._outputs == PRIOR + JUDGED:
                    self._judge()

    def _judge(self) -> None:
        """Take the mean without the prior, where that is far from it."""
        mean = max((self._outputs * self.osl - PRIOR * self.prior) / JUDGED, 1.0)
        guessed, seen = self._context(self.prior), self._context(mean)
        if not seen / FAR <= guessed <= seen * FAR:
            self.osl = self.prior = mean

    def _context(self, osl: float) -> float:
        return self.history + (self.isl or 0.0) + osl / 2


def _weight(number: int) -> float:
    return max(1 / number, FADE)
