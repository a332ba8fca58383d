"""How much later first tokens come than predicted where another worker decodes.

A profile knows the time that a KV cache takes on the network. Engines look for one that has arrived only between their
steps, some take a step to send it, and the host has to tell both. Only a measurement knows how long all that takes.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome

KEPT = 0.95
"""Share of what is known that each new hand-over leaves: about the last twenty count."""
PRIOR = 4.0
"""Hand-overs without a delay that count beside the measured ones."""
HALF_S = 600.0
"""Seconds after which half of what is known counts. Where nobody prefills for others any more, nothing new is heard."""
BAND = 1 / 8
"""Of the TTFT SLO: a prediction that is off by less is right."""
MOST = 4.0
"""Times the TTFT SLO: the longest delay that counts."""
MOST_KNOWN = 4096
"""Predictions that are remembered; a host that tells of no end must not fill the memory."""


class HandOvers:
    """When first tokens should come by way of another worker, and how late they came."""

    def __init__(self, ttft_s: float) -> None:
        self._ttft_s = ttft_s
        self._predicted_s: OrderedDict[str, float] = OrderedDict()
        """When the first token should come of each request that another worker prefills."""
        self._begun_s: OrderedDict[str, float] = OrderedDict()
        """The same of those whose hand-over has begun."""
        self._count = self._sum_s = self._now_s = 0.0

    def at(self, now_s: float) -> None:
        """Let what is known fade up to now."""
        left = 0.5 ** (max(now_s - self._now_s, 0.0) / HALF_S)
        self._now_s, self._count, self._sum_s = now_s, left * self._count, left * self._sum_s

    @property
    def delay_s(self) -> float:
        """Seconds by which first tokens come later than predicted; 0 where predictions are about right."""
        mean_s = self._sum_s / (self._count + PRIOR)
        return mean_s if mean_s > BAND * self._ttft_s else 0.0

    def placed(self, request: Request, expected_s: float | None) -> None:
        """Note when the first token of a request should come by a prediction without `delay_s`; None for no hand-over.

        A hand-over before, which came to nothing, is forgotten.
        """
        self._begun_s.pop(request.id, None)
        self._predicted_s.pop(request.id, None)
        if expected_s is not None:
            _remember(self._predicted_s, request, expected_s)

    def begins(self, request: Request, expected_s: float) -> None:
        """Note that the prefill of a request is done, and that another worker decodes.

        :param expected_s: when its first token should come, where that was not predicted before.
        """
        expected_s = self._predicted_s.pop(request.id, expected_s)
        if expected_s - request.arrival_s <= self._ttft_s:  # beyond capacity a late one waits for what else is late
            _remember(self._begun_s, request, expected_s)

    def ended(self, request: Request, outcome: Outcome) -> None:
        """Learn when the first token came. One that did not finish, or whose host saw no latency, says nothing."""
        self._predicted_s.pop(request.id, None)
        expected_s = self._begun_s.pop(request.id, None)
        if expected_s is None or outcome.ttft_s is None or outcome.ending is not Ending.FINISHED:
            return
        late_s = request.arrival_s + outcome.ttft_s - expected_s
        if not math.isfinite(late_s):
            return
        most_s = MOST * self._ttft_s
        self._count = KEPT * self._count + 1
        self._sum_s = KEPT * self._sum_s + min(max(late_s, -most_s), most_s)


def _remember(known: OrderedDict[str, float], request: Request, expected_s: float) -> None:
    known[request.id] = expected_s
    if len(known) > MOST_KNOWN:
        known.popitem(last=False)
