"""The verdict on a simulated run: what its records say about missed objectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pdplugins.config import Config
from pdplugins.contracts.request import Slo
from pdplugins.results import Scaling
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.verdict import Missed, Times, missed


def missed_of(outcome: RunOutcome, config: Config) -> Missed:
    """Split the misses of a run of `config`."""
    slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
    pools = config.deployment
    at_start = pools.prefill.replicas + pools.decode.replicas
    starting = list(starting_spells(outcome.scaling, at_start, pools.startup_s))
    return missed(_times(outcome.records, config, slo), slo, starting)


def starting_spells(scaling: Sequence[Scaling], at_start: int, startup_s: float) -> Iterator[tuple[float, float]]:
    """Yield (from, to) for each time in which new workers were on their way.

    :param at_start: workers of both roles at start.
    """
    before = at_start
    for change in scaling:
        workers = change.prefill + change.decode
        if workers > before:
            yield change.at_s, change.at_s + startup_s
        before = workers


def _times(records: Sequence[Record], config: Config, slo: Slo) -> Times:
    table = np.array([(r.arrival_s, *_latencies(r)) for r in records], dtype=float).reshape(len(records), 3)
    return Times(
        arrival_s=table[:, 0],
        ttft_s=table[:, 1],
        tpot_s=table[:, 2],
        alone_s=_alone_s(records, config, slo),
        local=np.array([r.prefill_worker == r.decode_worker for r in records], dtype=bool),
    )


def _latencies(record: Record) -> tuple[float | None, float | None]:
    return (None, None) if record.error is not None else (record.ttft_s, record.tpot_s)


def _alone_s(records: Sequence[Record], config: Config, slo: Slo) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the prefill time of each late prompt on an idle worker; 0 for those in time."""
    deployment = build_deployment(config)
    sizes = {deployment.prefill_tp, deployment.decode_tp}
    alone = np.zeros(len(records))
    for index, record in enumerate(records):
        if record.ttft_s is not None and record.ttft_s > slo.ttft_s:
            alone[index] = min(deployment.perf.prefill_s(record.isl_tokens, tp) for tp in sizes)
    return alone
