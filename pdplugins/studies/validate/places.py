"""Whether an engine runs as many requests at once as there are clients: the one thing about rows that nobody publishes.

With a place for every client, the TTFT of a row does not depend on how long answers are. With one place less, a client
always waits for the end of an answer: on average an answer's time over the number of places. So for two rows that
differ in the answer's length alone, the change of TTFT times the clients less one, over the change of the answer's
time, is 0 or 1.

The rule: a source lacks a place where the median of this slope over its pairs of rows is above one half. It looks at no
prediction, so it cannot favour one, and it is applied to the rows that coefficients are fitted on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from pdplugins.studies.validate.rows import Row

FEWEST_PAIRS = 5
"""A source with fewer pairs of rows counts as having all places."""


@dataclass(frozen=True, slots=True)
class Places:
    """What the rows of one source say."""

    pairs: int
    slope: float | None
    """The median of all pairs; None without a pair."""

    @property
    def one_less(self) -> bool:
        """Whether the engine runs one request less than there are clients."""
        return self.slope is not None and self.pairs >= FEWEST_PAIRS and self.slope > 0.5


def places_of(rows: Iterable[Row], kv_tokens: Callable[[Row], int]) -> dict[str, Places]:
    """Return what `rows` say of each of their sources.

    :param kv_tokens: KV capacity of the engine of a row. Rows whose requests do not all fit at once are left out, as
        their clients wait for KV cache.
    """
    alike: dict[tuple[str, int, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row.clients > 1 and row.clients * (row.isl_tokens + row.osl_tokens) <= kv_tokens(row):
            alike[row.source, row.tp, row.isl_tokens, row.clients].append(row)
    slopes: dict[str, list[float]] = defaultdict(list)
    for (source, *_), group in alike.items():
        slopes[source] += [slope for pair in combinations(group, 2) if (slope := _slope(*pair)) is not None]
    return {source: Places(len(found), median(found) if found else None) for source, found in sorted(slopes.items())}


def _slope(one: Row, other: Row) -> float | None:
    """Return the slope of two rows; None where their answers take the same time."""
    answers_s = other.osl_tokens * other.tpot_s - one.osl_tokens * one.tpot_s
    if one.osl_tokens == other.osl_tokens or not answers_s:
        return None
    return (one.clients - 1) * (other.ttft_s - one.ttft_s) / answers_s
