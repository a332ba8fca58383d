"""Whether the pools settle: how many of their changes are undone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pdplugins.results import Scaling


def undone(changes: Sequence[Scaling], after_s: float, until_s: float) -> int:
    """Count the changes from `after_s` to `until_s` that go back the way that the one before them came."""
    steps = [(b.at_s, b.prefill - a.prefill) for a, b in pairwise(changes) if b.at_s <= until_s]
    return sum(before * step < 0 and at_s > after_s for (_, before), (at_s, step) in pairwise(steps))
