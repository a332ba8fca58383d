"""What clients got lately, and what that says of the composition."""

from __future__ import annotations

from pdplugins.contracts.request import Request, Slo
from pdplugins.contracts.router import Ending, Outcome

WEIGHT = 0.01
"""Of one request in the shares of missed objectives."""
MISSED = 0.03
"""Share of requests that miss an objective from which it counts as missed."""
APART = 3.0
"""How many times as often one objective must be missed as the other. Beyond capacity both are, which says nothing."""


class Feedback:
    """The shares of requests that missed TTFT and TPOT lately."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self.ttft_missed = 0.0
        self.tpot_missed = 0.0
        self.full = 0.0
        """Share of the times lately that a request was held for a place to decode, and not for prefill."""

    def held(self, *, full: bool) -> None:
        """Learn from a request that cannot go on whether all places to decode are taken."""
        self.full += WEIGHT * (full - self.full)

    def heard(self, request: Request, outcome: Outcome) -> None:
        """Learn from a request that has ended. One that did not finish, or whose host saw no latency, says nothing."""
        if outcome.ending is not Ending.FINISHED:
            return
        own = request.terms
        ttft_s = (own and own.ttft_s) or self._slo.ttft_s
        tpot_s = (own and own.tpot_s) or self._slo.tpot_s
        if outcome.ttft_s is not None:
            self.ttft_missed += WEIGHT * ((outcome.ttft_s > ttft_s) - self.ttft_missed)
        if outcome.tpot_s is not None:
            self.tpot_missed += WEIGHT * ((outcome.tpot_s > tpot_s) - self.tpot_missed)

    @property
    def misses(self) -> bool:
        """Whether an objective is missed."""
        return max(self.ttft_missed, self.tpot_missed) > MISSED

    @property
    def misses_tpot(self) -> bool:
        """Whether TPOT is what is missed."""
        return self.tpot_missed > max(MISSED, APART * self.ttft_missed)

    @property
    def asks(self) -> int:
        """How many more workers should prefill only: 1 where TTFT is missed, -1 where TPOT is, 0 where neither says.

        A TTFT is missed for places to decode as well: then one more that prefills only would leave even fewer.
        """
        if self.ttft_missed > max(MISSED, APART * self.tpot_missed):
            return -1 if self.full > 0.5 else 1
        return -1 if self.misses_tpot else 0
