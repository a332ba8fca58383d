"""What is kept of a run that is streamed: counts and distributions, and nothing of a request that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pdplugins import metrics
from pdplugins.contracts.request import Slo
from pdplugins.results import Metrics, Requests, Spread
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.stream.sketch import Sketch

CHUNK = 8192
"""Records, or runs of decode steps, that are counted together."""


class Totals:
    """Counts what ends, and empties the lists of the run.

    :param live: the outcome of the running simulation. Its records and gaps are the lists that the simulation adds to.
    :param write: takes the records that have ended, in that order.
    """

    def __init__(self, live: RunOutcome, slo: Slo, write: Callable[[Sequence[Record]], None]) -> None:
        self._records, self._gaps = live.records, live.gaps
        self._slo = slo
        self._write = write
        self._ttft_s, self._tpot_s, self._tbt_s = Sketch(), Sketch(), Sketch()
        self._total = self._answered = self._good = self._good_tokens = 0

    def take(self, *, rest: bool = False) -> None:
        """Count what has ended and let it go, once it is a chunk or is the `rest`. Call it between two events."""
        least = 1 if rest else CHUNK
        if len(self._records) >= least:
            self._count(self._records)
            self._write(self._records)
            self._records.clear()
        if len(self._gaps.means) >= least:
            means_s = np.array(self._gaps.means) / self._gaps.ticks_per_s
            self._tbt_s.add(means_s, np.array(self._gaps.counts, dtype=np.int64))
            del self._gaps.means[:], self._gaps.counts[:]

    def _count(self, records: Sequence[Record]) -> None:
        answered = [record for record in records if record.error is None]
        ttft_s, tpot_s = (np.array([record[column] for record in answered], dtype=float) for column in (TTFT_S, TPOT_S))
        good = metrics.inside(ttft_s, tpot_s, self._slo)
        self._total += len(records)
        self._answered += len(answered)
        self._good += int(good.sum())
        self._good_tokens += int(np.array([record.osl_tokens for record in answered], dtype=int)[good].sum())
        self._ttft_s.add(ttft_s[~np.isnan(ttft_s)])
        self._tpot_s.add(tpot_s[~np.isnan(tpot_s)])

    def summary(self, outcome: RunOutcome) -> tuple[Requests, Metrics]:
        """Count what is left, and return every metric of the run, as `pdplugins.sim.run.simulate.summarise` does."""
        self.take(rest=True)
        duration_s, energy_j = outcome.duration_s, outcome.energy_j
        ttft_s, tpot_s = self._ttft_s.distribution(), self._tpot_s.distribution()
        found = Metrics(
            ttft_s=Spread.from_distribution(ttft_s),
            tpot_s=Spread.from_distribution(tpot_s),
            tbt_s=Spread.from_distribution(self._tbt_s.weighted()),
            slo_attainment=metrics.attainment(self._good, self._total),
            goodput_tokens_per_s=metrics.per_second(self._good_tokens, duration_s),
            goodput_requests_per_s=metrics.per_second(self._good, duration_s),
            gpu_hours=outcome.gpu_hours,
            energy_j=energy_j,
            mean_w=metrics.per_second(energy_j, duration_s) if energy_j is not None and duration_s > 0 else None,
        )
        return Requests(total=self._total, failed=self._total - self._answered), found


TTFT_S, TPOT_S = Record._fields.index("ttft_s"), Record._fields.index("tpot_s")
