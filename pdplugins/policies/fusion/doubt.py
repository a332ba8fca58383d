"""The choice between numbers of prefill-only workers while nobody knows well how long answers are.

A change has to pay whatever the mean length of answers is, within the doubt about it. So the programme is solved for
longer and for shorter answers as well. Where many workers only prefill, few are left to decode, and a little longer
answers cost the most; where all do both, the length hardly matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pdplugins.policies.fusion.composition import MOST_COUNTS, Frontier
from pdplugins.policies.fusion.watts import Powered

LONGER, SHORTER = 4.0, 1.0
"""By which part answers may be longer or shorter than their mean so far, over the square root of their number. Short
answers end first, so the mean is far more often too small."""


def parts(answers: int) -> tuple[float, float, float]:
    """Return how many times as long as their mean answers may be, after so many: as long, longer and shorter."""
    doubt = 1 / math.sqrt(max(answers, 1))
    return 1.0, 1 + LONGER * doubt, 1 / (1 + SHORTER * doubt)


class Cases:
    """The programme for the mean length of answers, which comes first, and for the others that it may be.

    :param workers: number of all workers.
    :param solve: returns what workers can do where answers are so many times as long as their mean.
    """

    def __init__(self, workers: int, answers: int, solve: Callable[[float], Frontier | Powered]) -> None:
        self._workers = workers
        self._solved: Sequence[Frontier | Powered] = [solve(part) for part in parts(answers)]
        self._counts = range(0, workers, -(-workers // MOST_COUNTS))
        self._rates = [[self._rate(does, count) for count in self._counts] for does in self._solved]

    @property
    def mean(self) -> Frontier | Powered:
        """What workers can do where answers are as long as their mean."""
        return self._solved[0]

    @property
    def capacity(self) -> float:
        """Requests a second that the best number of workers serves then."""
        return max(self._rates[0])

    def least(self, count: int) -> float:
        """Return the requests a second that this number of workers serves at most in the worst of the cases."""
        return min(self._rate(does, count) for does in self._solved)

    def better(self, present: int, gain: float) -> int:
        """Return `present`, or a number that serves more in each of the cases, where one does so by `gain`.

        It is the one whose least advantage is the largest, or a smaller one that costs at most `gain` of that.
        """
        now = [max(self._rate(does, present), 1e-9) for does in self._solved]
        cases = zip(*self._rates, strict=True)
        least = [min(rate / was for rate, was in zip(rates, now, strict=True)) for rates in cases]
        enough = max(least) / (1 + gain)
        if enough <= 1:
            return present
        return next(count for count, rate in zip(self._counts, least, strict=True) if rate >= enough)

    def keeps(self, count: int, part: float) -> bool:
        """Tell whether `count` costs at most this part of what the best number serves, in each of the cases."""
        both = zip(self._solved, self._rates, strict=True)
        return all(self._rate(does, count) * (1 + part) >= max(rates) for does, rates in both)

    def _rate(self, does: Frontier | Powered, count: int) -> float:
        return does.rate(count, self._workers - count)
