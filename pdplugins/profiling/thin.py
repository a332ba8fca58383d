"""Leaves out the knots of a table that linear interpolation between the others gives back.

A table of aiconfigurator is asked for at many points. A profile keeps those that matter: knots are added where the
error is largest, until no left-out value is off by more than a share of itself. Only values at the asked points are
compared; between them aiconfigurator interpolates too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def thinned(axis: Sequence[int], tables: Sequence[Sequence[float]], most_error: float) -> list[int]:
    """Return the indexes of the knots of `axis` to keep.

    :param tables: positive values over `axis`, all of which the knots are to give back.
    :param most_error: largest relative error of a value that is left out.
    """
    xs, rows = np.array(axis, float), np.array(tables, float)
    kept = [0, len(axis) - 1]
    while len(kept) < len(axis):
        errors = error(xs, rows, kept).max(axis=0)
        worst = int(errors.argmax())
        if errors[worst] <= most_error:
            break
        kept = sorted([*kept, worst])
    return kept


def error(xs: Floats, rows: Floats, kept: Sequence[int]) -> Floats:
    """Return the relative error of each value when only the `kept` ones are interpolated between."""
    found = np.array([np.interp(xs, xs[kept], row[kept]) for row in rows])
    return np.abs(found / rows - 1)
