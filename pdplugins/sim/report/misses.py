"""The verdict on a simulated run: what its records say about missed objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pdplugins.config import Config
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.core.worker import Hardware
from pdplugins.sim.run.setup import hardware_of
from pdplugins.verdict import Missed, Times, missed, starting_spells


def missed_of(outcome: RunOutcome, config: Config) -> Missed:
    """Split the misses of a run of `config`."""
    slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
    pools, deployment = config.deployment, build_deployment(config)
    extra = {role: sum(more.count for more in config.simulation.extra if more.role is role) for role in Role}
    at_start = pools.prefill.replicas + extra[Role.PREFILL], pools.decode.replicas + extra[Role.DECODE]
    changes = [(0.0, *at_start), *((change.at_s, change.prefill, change.decode) for change in outcome.scaling)]
    moves = deployment.prefill_tp == deployment.decode_tp  # then the simulator gives a worker another role
    starting = list(starting_spells(changes, pools.startup_s, moves=moves))
    return missed(_times(outcome.records, hardware_of(config, deployment), slo), slo, starting)


def _times(records: Sequence[Record], hardware: Sequence[Hardware], slo: Slo) -> Times:
    table = np.array([(r.arrival_s, *_latencies(r)) for r in records], dtype=float).reshape(len(records), 3)
    return Times(
        arrival_s=table[:, 0],
        ttft_s=table[:, 1],
        tpot_s=table[:, 2],
        alone_s=_alone_s(records, hardware, lambda r: (r.ttft_s or 0.0) > slo.ttft_s, _prefill_s),
        alone_tpot_s=_alone_s(records, hardware, lambda r: (r.tpot_s or 0.0) > slo.tpot_s, _step_s),
        local=np.array([r.prefill_worker == r.decode_worker for r in records], dtype=bool),
    )


def _latencies(record: Record) -> tuple[float | None, float | None]:
    return (None, None) if record.error is not None else (record.ttft_s, record.tpot_s)


def _alone_s(
    records: Sequence[Record],
    hardware: Sequence[Hardware],
    late: Callable[[Record], bool],
    time_s: Callable[[Record, Hardware], float],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the time of each late record alone on its fastest worker; 0 for the others."""
    return np.array([min(time_s(r, worker) for worker in hardware) if late(r) else 0.0 for r in records], dtype=float)


def _prefill_s(record: Record, worker: Hardware) -> float:
    """Return the time of a prompt, less what was cached."""
    return worker.perf.prefill_s(max(record.isl_tokens - record.cached_tokens, 1), worker.tp)


def _step_s(record: Record, worker: Hardware) -> float:
    """Return the time of a decode step at the mean context of an answer."""
    return worker.perf.decode_step_s(1, record.isl_tokens + record.osl_tokens / 2, worker.tp)
