"""The lines of a report for one run: a few hundred points each, however many requests there were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pdplugins.results import Result, Scaling
from pdplugins.sim.core.records import Gaps, Record
from pdplugins.sim.core.sampler import Sample
from pdplugins.sim.core.settings import RunOutcome

BINS = 240
"""Points of a line over time."""
SHARES = np.concatenate([np.linspace(0, 0.99, 199), np.linspace(0.991, 1, 10)])
"""Shares at which a CDF is drawn, with more points in the tail."""

Array = np.ndarray[Any, Any]
Line = list[float | None]
"""One value for each point; None where there is none."""


@dataclass(frozen=True, slots=True)
class Series:
    """The lines of one run. Times are in seconds since its start."""

    at_s: Line
    """Middle of each bin of arrival times, for the next lines."""
    rate: Line
    """Arrivals per second."""
    isl_tokens: Line
    osl_tokens: Line
    attainment: Line
    """Share of the requests of the bin that met both SLOs."""
    ttft_p50_s: Line
    ttft_p99_s: Line
    tpot_p50_s: Line
    tpot_p99_s: Line
    cdf_share: Line
    """Share of requests, or of gaps, for the next lines."""
    cdf_ttft_s: Line
    cdf_tpot_s: Line
    cdf_tbt_s: Line
    samples: list[Sample]
    decisions: list[Scaling]


def series_of(outcome: RunOutcome, result: Result, samples: Sequence[Sample]) -> Series:
    """Reduce a run to the lines of a report."""
    slo = result.config["slo"]
    columns = _columns(outcome.records)
    arrival, ttft, tpot = columns["arrival_s"], columns["ttft_s"], columns["tpot_s"]
    end_s = float(arrival.max(initial=0.0)) or 1.0
    bins = np.minimum((arrival * (BINS / end_s)).astype(int), BINS - 1)
    inside = ((ttft <= slo["ttft_s"]) & (tpot <= slo["tpot_s"])).astype(float)

    def over_time(values: Array, reduce: Callable[[Array], float] = np.mean) -> Line:
        return _by_bin(bins, values, reduce)

    counts = np.bincount(bins, minlength=BINS)
    return Series(
        at_s=[end_s * (index + 0.5) / BINS for index in range(BINS)],
        rate=_plain(counts * (BINS / end_s)),
        isl_tokens=over_time(columns["isl_tokens"]),
        osl_tokens=over_time(columns["osl_tokens"]),
        attainment=over_time(inside),
        ttft_p50_s=over_time(ttft, np.median),
        ttft_p99_s=over_time(ttft, _p99),
        tpot_p50_s=over_time(tpot, np.median),
        tpot_p99_s=over_time(tpot, _p99),
        cdf_share=_plain(SHARES),
        cdf_ttft_s=_cdf(ttft),
        cdf_tpot_s=_cdf(tpot),
        cdf_tbt_s=_gap_cdf(outcome.gaps),
        samples=thinned(samples),
        decisions=list(outcome.scaling),
    )


def thinned(samples: Sequence[Sample], most: int = 2 * BINS) -> list[Sample]:
    """Return about `most` of `samples`, evenly spaced. The samples before and after a change of workers are kept."""
    step = max(len(samples) // most, 1)
    kept = []
    for index, now in enumerate(samples):
        near = samples[max(index - 1, 0) : index + 2]
        changes = any(other.held != now.held or other.ready != now.ready for other in near)
        if changes or index % step == 0 or index == len(samples) - 1:
            kept.append(now)
    return kept


def _columns(records: Sequence[Record]) -> dict[str, Array]:
    """Return the numbers of `records` by field. Failed requests have NaN, which meets no SLO."""
    names = ("arrival_s", "isl_tokens", "osl_tokens", "ttft_s", "tpot_s")
    rows = [
        (r.arrival_s, r.isl_tokens, r.osl_tokens, *((r.ttft_s, r.tpot_s) if r.error is None else (None, None)))
        for r in records
    ]
    table = np.array(rows, dtype=float).reshape(len(rows), len(names))
    return dict(zip(names, table.T, strict=True))


def _by_bin(bins: Array, values: Array, reduce: Callable[[Array], float]) -> Line:
    known = ~np.isnan(values)
    bins, values = bins[known], values[known]
    order = np.argsort(bins, kind="stable")
    edges = np.searchsorted(bins[order], np.arange(BINS + 1))
    parts = (values[order][low:high] for low, high in pairwise(edges))
    return [_rounded(float(reduce(part))) if len(part) else None for part in parts]


def _p99(values: Array) -> float:
    return float(np.percentile(values, 99))


def _cdf(values: Array) -> Line:
    known = values[~np.isnan(values)]
    return _plain(np.quantile(known, SHARES)) if len(known) else []


def _gap_cdf(gaps: Gaps) -> Line:
    if not gaps.means:
        return []
    means, counts = np.asarray(gaps.means) / gaps.ticks_per_s, np.asarray(gaps.counts)
    order = np.argsort(means, kind="stable")
    ranks = np.cumsum(counts[order])
    return _plain(means[order][np.minimum(np.searchsorted(ranks, SHARES * ranks[-1]), len(ranks) - 1)])


def _plain(values: Array) -> Line:
    return [_rounded(float(value)) for value in values]


def _rounded(value: float) -> float:
    """Round to five digits, which is more than a screen shows."""
    return float(f"{value:.5g}")
