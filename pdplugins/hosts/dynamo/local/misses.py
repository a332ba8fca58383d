"""The verdict on a replay: what its records say about missed objectives, and what fixed pools would have done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from pdplugins import verdict
from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.results import RequestRecord, Result
from pdplugins.workloads.trace import TraceRequest

log = logging.getLogger("pdplugins.local")

Hindsight = Callable[[Config, Sequence[TraceRequest], float], list[str]]
"""Says what fixed pools would have done with some requests, against a run that held that many GPUs on the average."""


def missed(
    records: Sequence[RequestRecord], result: Result, deployment: Deployment, startup_s: float
) -> verdict.Missed:
    """Split what a replay missed.

    :param startup_s: seconds that a worker took from the decision until it served.
    """
    changes = [(change.at_s, change.prefill, change.decode) for change in result.scaling]
    starting = list(verdict.starting_spells(changes, startup_s))
    return verdict.missed(_times(records, deployment), deployment.slo, starting)


def _times(records: Sequence[RequestRecord], deployment: Deployment) -> verdict.Times:
    ttft = [record.ttft_s if record.ok else float("nan") for record in records]
    tpot = [record.tpot_s if record.ok else float("nan") for record in records]
    alone = [deployment.perf.prefill_s(record.isl_tokens, deployment.prefill_tp) for record in records]
    steps = [
        deployment.perf.decode_step_s(1, record.isl_tokens + record.osl_tokens / 2, deployment.decode_tp)
        for record in records
    ]
    arrivals = [record.arrival_s for record in records]
    return verdict.Times(
        np.array(arrivals), np.array(ttft), np.array(tpot), alone_s=np.array(alone), alone_tpot_s=np.array(steps)
    )


def looking_back(
    hindsight: Hindsight | None, config: Config, requests: Sequence[TraceRequest], result: Result
) -> list[str]:
    """Say what fixed pools would have done; nothing where nobody can tell."""
    if hindsight is None or result.speed.duration_s <= 0:
        return []
    gpus_held = 3600 * result.metrics.gpu_hours / result.speed.duration_s
    try:
        return hindsight(config, requests, gpus_held)
    except Exception:  # the replay was good without it
        log.exception("the replay could not be compared with fixed pools")
        return []
