"""Mean lengths of prompts and outputs, over recent requests."""

from __future__ import annotations

import math
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
EARLY = 8
"""Answers after which it is looked whether the prior is far too long."""
FAR = 1.5
"""Factor by which a prior may make the mean context too long or too short and still count."""


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
        self._first: FirstAnswers | None = FirstAnswers()
        """What the first answers say; None once the prior is judged."""
        self._open: OrderedDict[str, int | None] = OrderedDict()
        """Requests in the order they went on, each with its output once it has ended."""

    def began(self, request: Request, now_s: float = 0.0) -> None:
        """Learn the length of a prompt that goes on. A second call for the same request changes nothing."""
        if request.id in self._open:
            return
        tokens = float(max(request.prompt_tokens - request.history_tokens, 1))
        self._prompts += 1
        weight = _weight(self._prompts)
        self.isl = tokens if self.isl is None else self.isl + weight * (tokens - self.isl)
        self.history += weight * (request.prompt_tokens - tokens - self.history)
        self._open[request.id] = None
        if self._first is not None:
            self._first.began(request.id, now_s)
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
            self._count()

    @property
    def answered(self) -> bool:
        """Whether enough answers have come to say how long they are."""
        return self._first is None or self._first.enough

    def knows(self, request: Request) -> bool:
        """Tell whether a request has gone on, and not ended."""
        return self._open.get(request.id, 0) is None

    def ended(
        self, request: Request, output_tokens: int | None, tpot_s: float | None = None, now_s: float = 0.0
    ) -> None:
        """Learn the length of an output; None for a request that did not finish.

        :param tpot_s: its time per output token, where the host saw that.
        """
        if request.id not in self._open:
            return
        self._open[request.id] = -1 if output_tokens is None else output_tokens
        if self._first is not None:
            self._doubt(self._first.ended(request.id, output_tokens, tpot_s, now_s))
        self._count()

    def _count(self) -> None:
        while self._open and (tokens := next(iter(self._open.values()))) is not None:
            self._open.popitem(last=False)
            if tokens >= 0:
                self._outputs += 1
                self.osl += _weight(self._outputs) * (tokens - self.osl)
                if self._outputs == PRIOR + JUDGED:
                    self._judge()

    def _doubt(self, mean: float | None) -> None:
        """Take the mean that the first answers say in place of a prior that is far too long."""
        if mean is not None and self._context(self.prior) > FAR * self._context(mean):
            self._outputs = PRIOR
            self.osl = self.prior = max(mean, 1.0)

    def _judge(self) -> None:
        """Take the mean without the prior, where that is far from it."""
        self._first = None
        mean = max((self._outputs * self.osl - PRIOR * self.prior) / JUDGED, 1.0)
        guessed, seen = self._context(self.prior), self._context(mean)
        if not seen / FAR <= guessed <= seen * FAR:
            self.osl = self.prior = mean

    def _context(self, osl: float) -> float:
        return self.history + (self.isl or 0.0) + osl / 2


class FirstAnswers:
    """The mean output by what has ended and what still goes on: for the time when the short ones have ended only.

    It is all tokens so far over the number of answers that have ended. Where lengths are exponential that is the most
    likely mean. A request that goes on has at most the tokens that its time allows at the mean TPOT of the others.
    """

    def __init__(self) -> None:
        self._begun_s: dict[str, float] = {}
        """When each request went on that has not ended."""
        self._sum_s = self._tpots_s = 0.0
        self._ended = self._tokens = 0

    @property
    def enough(self) -> bool:
        """Whether enough requests have ended to say a mean."""
        return self._ended >= EARLY

    def began(self, request: str, now_s: float) -> None:
        """Take in a request that goes on."""
        if len(self._begun_s) < MOST_OPEN:
            self._begun_s[request] = now_s
            self._sum_s += now_s

    def ended(self, request: str, output_tokens: int | None, tpot_s: float | None, now_s: float) -> float | None:
        """Take in the end of a request, and return the mean; None while too few have ended."""
        if (begun_s := self._begun_s.pop(request, None)) is None:
            return None
        self._sum_s -= begun_s
        if output_tokens is None or tpot_s is None or not 0 < tpot_s < math.inf:
            return None
        self._ended += 1
        self._tokens += output_tokens
        self._tpots_s += tpot_s
        if not self.enough:
            return None
        going_on_s = max(len(self._begun_s) * now_s - self._sum_s, 0.0)
        return (self._tokens + going_on_s * self._ended / self._tpots_s) / self._ended


def _weight(number: int) -> float:
    return max(1 / number, FADE)
