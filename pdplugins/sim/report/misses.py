"""The verdict on a simulated run: what its records say about missed objectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdplugins.config import Config
from pdplugins.contracts.request import Slo
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.verdict import Missed, Times, missed, starting_spells


def missed_of(outcome: RunOutcome, config: Config) -> Missed:
    """Split the misses of a run of `config`."""
    slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
    pools = config.deployment
    extra = sum(more.count for more in config.simulation.extra)
    changes = [(0.0, pools.prefill.replicas + pools.decode.replicas + extra)]
    changes += [(change.at_s, change.prefill + change.decode) for change in outcome.scaling]
    starting = list(starting_spells(changes, pools.startup_s))
    return missed(_times(outcome.records, config, slo), slo, starting)


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
