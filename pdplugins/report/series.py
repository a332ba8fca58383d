"""The lines of a report for one run: a few hundred points each, however many requests there were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pdplugins import metrics
from pdplugins.contracts.request import Slo
from pdplugins.report.svg import Values
from pdplugins.results import RequestRecord, Scaling

BINS, FEWEST_BINS = 240, 24
"""Most and fewest points of a line over time."""
PER_BIN = 8
"""Requests for which there is one more point: a point of one request would say nothing."""
SHARES = np.concatenate([np.linspace(0, 0.99, 199), np.linspace(0.991, 1, 10)])
"""Shares at which a CDF is drawn, with more points in the tail."""

Array = np.ndarray[Any, Any]
QUEUE, SERVING, RUNNING = "Requests that wait", "Workers that serve", "Requests that run"
HELD, POWER, WANTED = "Workers with start-up and draining", "Power of all GPUs", "Workers that are wanted"


@dataclass(frozen=True, slots=True)
class Gauge:
    """What was counted over time, of one or more things."""

    title: str
    unit: str
    at_s: Values
    values: Mapping[str, Values]
    """By what it is of, as in ``prefill``; the empty name where there is one thing only."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a run, one entry for each. NaN where it has none, which meets no SLO."""

    arrival_s: Array
    isl_tokens: Array
    osl_tokens: Array
    ttft_s: Array
    tpot_s: Array

    @classmethod
    def of(cls, rows: Sequence[tuple[float | None, ...]]) -> Requests:
        """Take (arrival, prompt tokens, output tokens, TTFT, TPOT) of each request."""
        table = np.array(rows, dtype=float).reshape(len(rows), 5)
        return cls(*table.T)


@dataclass(frozen=True, slots=True)
class Series:
    """The lines of one run. Times are in seconds since its start."""

    at_s: Values
    """Middle of each bin of arrival times, for the next lines."""
    rate: Values
    """Arrivals per second."""
    isl_tokens: Values
    osl_tokens: Values
    attainment: Values
    """Share of the requests of the bin that met both SLOs."""
    ttft_p50_s: Values
    ttft_p99_s: Values
    tpot_p50_s: Values
    tpot_p99_s: Values
    cdf_share: Values
    """Share of requests, or of gaps, for the next lines."""
    cdf_ttft_s: Values
    cdf_tpot_s: Values
    cdf_tbt_s: Values
    gauges: Sequence[Gauge]


def series(requests: Requests, slo: Slo, gauges: Sequence[Gauge], cdf_tbt_s: Values = ()) -> Series:
    """Reduce the requests of a run to the lines of a report.

    :param cdf_tbt_s: times between tokens at `SHARES`; empty where they are not known.
    """
    end_s = float(requests.arrival_s.max(initial=0.0)) or 1.0
    count = min(max(len(requests.arrival_s) // PER_BIN, FEWEST_BINS), BINS)
    bins = np.minimum((requests.arrival_s * (count / end_s)).astype(int), count - 1)
    good = metrics.inside(requests.ttft_s, requests.tpot_s, slo).astype(float)

    def over_time(values: Array, reduce: Callable[[Array], float] = np.mean) -> Values:
        return _by_bin(bins, count, values, reduce)

    return Series(
        at_s=[end_s * (index + 0.5) / count for index in range(count)],
        rate=plain(np.bincount(bins, minlength=count) * (count / end_s)),
        isl_tokens=over_time(requests.isl_tokens),
        osl_tokens=over_time(requests.osl_tokens),
        attainment=over_time(good),
        ttft_p50_s=over_time(requests.ttft_s, np.median),
        ttft_p99_s=over_time(requests.ttft_s, _p99),
        tpot_p50_s=over_time(requests.tpot_s, np.median),
        tpot_p99_s=over_time(requests.tpot_s, _p99),
        cdf_share=plain(SHARES),
        cdf_ttft_s=_cdf(requests.ttft_s),
        cdf_tpot_s=_cdf(requests.tpot_s),
        cdf_tbt_s=cdf_tbt_s,
        gauges=gauges,
    )


def series_of_records(records: Sequence[RequestRecord], slo: Slo, scaling: Sequence[Scaling]) -> Series:
    """Reduce a run of which only its requests and its changes of the pools are known."""
    rows = [
        (r.arrival_s, r.isl_tokens, r.osl_tokens, *((r.ttft_s, r.tpot_s) if r.ok else (None, None))) for r in records
    ]
    gaps = np.array([gap for record in records if record.ok for gap in record.tbt_s])
    return series_of_rows(rows, slo, scaling, _cdf(gaps))


def series_of_rows(
    rows: Sequence[tuple[float | None, ...]], slo: Slo, scaling: Sequence[Scaling], cdf_tbt_s: Values = ()
) -> Series:
    """Reduce a run of which (arrival, prompt tokens, output tokens, TTFT, TPOT) of each request are known."""
    requests = Requests.of(rows)
    last_s = float(requests.arrival_s.max(initial=0.0))
    gauges = [_waiting(requests)]
    if scaling:
        gauges.append(_wanted(scaling, last_s))
    return series(requests, slo, gauges, cdf_tbt_s)


def _waiting(requests: Requests) -> Gauge:
    """Count the requests without a first token over time."""
    known = ~np.isnan(requests.ttft_s)
    come = np.sort(requests.arrival_s[known])
    begun = np.sort((requests.arrival_s + requests.ttft_s)[known])
    at_s = np.linspace(0.0, float(begun.max(initial=1.0)), 2 * BINS)
    waiting = np.searchsorted(come, at_s, side="right") - np.searchsorted(begun, at_s, side="right")
    return Gauge(QUEUE, "requests without a first token", plain(at_s), {"": plain(waiting)})


def _wanted(scaling: Sequence[Scaling], last_s: float) -> Gauge:
    changes = [*scaling, scaling[-1].model_copy(update={"at_s": max(last_s, scaling[-1].at_s)})]
    pools: dict[str, Values] = {
        "prefill": [float(change.prefill) for change in changes],
        "decode": [float(change.decode) for change in changes],
    }
    return Gauge(WANTED, "workers", [change.at_s for change in changes], pools)


def _by_bin(bins: Array, count: int, values: Array, reduce: Callable[[Array], float]) -> Values:
    known = ~np.isnan(values)
    bins, values = bins[known], values[known]
    order = np.argsort(bins, kind="stable")
    edges = np.searchsorted(bins[order], np.arange(count + 1))
    parts = (values[order][low:high] for low, high in pairwise(edges))
    return [_rounded(float(reduce(part))) if len(part) else None for part in parts]


def _p99(values: Array) -> float:
    return float(np.percentile(values, 99))


def _cdf(values: Array) -> Values:
    known = values[~np.isnan(values)]
    return plain(np.quantile(known, SHARES)) if len(known) else []


def plain(values: Iterable[Any]) -> Values:
    """Return numbers of numpy as numbers of Python, to as many digits as a screen shows."""
    return [_rounded(float(value)) for value in values]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
