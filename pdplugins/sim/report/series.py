"""What the simulator adds to the lines of a report: its samples of the fleet, and all gaps between tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pdplugins.contracts.request import Slo
from pdplugins.report.series import (
    BINS,
    HELD,
    POWER,
    QUEUE,
    RUNNING,
    SERVING,
    SHARES,
    Gauge,
    Requests,
    Series,
    plain,
    series,
)
from pdplugins.report.svg import Values
from pdplugins.results import Result
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.sampler import Sample
from pdplugins.sim.core.settings import RunOutcome

BY_ROLE: tuple[tuple[str, str, Callable[[Sample], tuple[int, int]]], ...] = (
    (QUEUE, "requests", lambda sample: sample.queued),
    (SERVING, "workers", lambda sample: sample.ready),
    (HELD, "workers", lambda sample: sample.held),
    (RUNNING, "requests", lambda sample: sample.running),
)


def series_of(outcome: RunOutcome, result: Result, samples: Sequence[Sample]) -> Series:
    """Reduce a run to the lines of a report."""
    slo = result.config["slo"]
    rows = [
        (r.arrival_s, r.isl_tokens, r.osl_tokens, *((r.ttft_s, r.tpot_s) if r.error is None else (None, None)))
        for r in outcome.records
    ]
    gauges = list(_gauges(thinned(samples)))
    return series(Requests.of(rows), Slo(slo["ttft_s"], slo["tpot_s"]), gauges, _gap_cdf(outcome.gaps))


def _gauges(samples: Sequence[Sample]) -> Iterator[Gauge]:
    at_s = [sample.at_s for sample in samples]
    for title, unit, pick in BY_ROLE:
        values: dict[str, Values] = {
            role: [float(pick(sample)[index]) for sample in samples] for index, role in enumerate(("prefill", "decode"))
        }
        yield Gauge(title, unit, at_s, values)
    watts: dict[str, Values] = {"draw": [s.draw_w for s in samples], "caps": [s.cap_w for s in samples]}
    yield Gauge(POWER, "W", at_s, watts)


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


def _gap_cdf(gaps: Gaps) -> Values:
    if not gaps.means:
        return []
    means, counts = np.asarray(gaps.means) / gaps.ticks_per_s, np.asarray(gaps.counts)
    order = np.argsort(means, kind="stable")
    ranks = np.cumsum(counts[order])
    return plain(means[order][np.minimum(np.searchsorted(ranks, SHARES * ranks[-1]), len(ranks) - 1)])
