"""Definitions of the client-side metrics, as functions over plain arrays.

Live runs, simulated runs and Dynamo's offline replay compute their metrics here. `pdplugins.results` is the schema of
result files, and docs/results.md explains it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplugins.contracts.request import Slo

QUANTILES = (0.5, 0.9, 0.99)


class Distribution(NamedTuple):
    """Mean and quantiles of samples, in the unit of the samples."""

    mean: float
    p50: float
    p90: float
    p99: float


def tpot_s(decode_s: float, osl_tokens: int) -> float:
    """Return the time per output token of one request; 0 for one token.

    :param decode_s: seconds from the first output token to the last.
    """
    return decode_s / (osl_tokens - 1) if osl_tokens > 1 else 0.0


def inside(ttft_s: ArrayLike, tpot_s: ArrayLike, slo: Slo) -> NDArray[np.bool_]:
    """Return for each request whether it met both objectives. NaN means that there is no such time, and meets none."""
    met: NDArray[np.bool_] = np.less_equal(ttft_s, slo.ttft_s) & np.less_equal(tpot_s, slo.tpot_s)
    return met


def attainment(inside: int, total: int) -> float | None:
    """Return the share of `total` requests that are `inside` both objectives; None without requests."""
    return inside / total if total else None


def per_second(amount: float, duration_s: float) -> float:
    """Return `amount` per second of a run; 0 for an empty run. For requests inside the SLOs, this is the goodput."""
    return amount / duration_s if duration_s > 0 else 0.0


def distribution(samples: ArrayLike) -> Distribution | None:
    """Return the distribution of `samples`, linear between order statistics; None without samples."""
    values = np.asarray(samples, dtype=float)
    if not values.size:
        return None
    return Distribution(
        float(np.mean(values)), *(float(q) for q in np.percentile(values, [100 * q for q in QUANTILES]))
    )


def weighted_distribution(values: ArrayLike, counts: ArrayLike) -> Distribution | None:
    """Return the distribution of samples given as distinct `values` and the count of each; None without samples.

    A quantile is the smallest value such that at least that share of the samples is at most this value.
    """
    values, counts = np.asarray(values, dtype=float), np.asarray(counts)
    if not values.size:
        return None
    order = np.argsort(values, kind="stable")
    ranks = np.cumsum(counts[order])
    quantiles = (float(values[order][np.searchsorted(ranks, share * ranks[-1])]) for share in QUANTILES)
    return Distribution(float(np.average(values, weights=counts)), *quantiles)
