"""Computes the bound for a config and a trace, and the regret of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np
from pydantic import BaseModel, Field

from pdplugins.config import Config
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.results import Regret, Result
from pdplugins.runtime.assembly import load_profile
from pdplugins.sim.report.ranking import Run
from pdplugins.sim.run.compare import Plan
from pdplugins.studies.bound.demand import Demand, demand_of
from pdplugins.studies.bound.prices import Buckets, Fleet, buckets_of, held_bound, served_bound
from pdplugins.studies.bound.program import Program
from pdplugins.studies.bound.steps import Kind
from pdplugins.workloads.trace import TraceRequest

SHARE = 0.99
"""SLO attainment for which the fewest GPU-hours are computed."""


class Bound(BaseModel):
    """What no policy can beat on one trace, with one profile and number of GPUs."""

    slo_attainment: float = Field(description="no policy serves a larger share of the requests inside both SLOs")
    fewest_gpu_hours: float | None = Field(description="no scaler reaches 99 % with less; null when none reaches it")
    requests: int
    hopeless: int = Field(description="requests that not even an idle worker serves inside both SLOs")
    free: int = Field(description="later rounds of sessions, which count as served for nothing")
    gpus: int
    prefill_gpu_s: float = Field(description="GPU-seconds that all prompts need at least")
    decode_gpu_s: float = Field(description="GPU-seconds that all outputs need at least")
    rates: dict[str, float] = Field(description="GPU-seconds of a prompt token, an output token, a token of context")


@dataclass(frozen=True)
class Machine:
    """The hardware that a policy may use, and the objectives."""

    kinds: Sequence[Kind]
    slo: Slo
    gpus: int
    max_batch: int
    startup_s: float
    block_tokens: int = 512
    least_workers: int = 2
    """Workers that are there at any time: one of each role, or one that serves both phases."""


def bound_of(config: Config, trace: Sequence[TraceRequest]) -> Bound:
    """Compute the bound for `trace` on the GPUs of `config`, whatever its policies and pools. Raises ConfigError."""
    deployment = config.deployment
    gpus = deployment.gpu_budget
    kinds = [kind for kind in kinds_of(config) if kind.tp <= gpus and kind.kv_tokens > 1]
    if not kinds:
        raise ConfigError(
            f"bound: no worker of profile {deployment.profile} with times of both phases fits {gpus} GPUs; "
            "raise the budget or take another profile"
        )
    slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
    block_tokens = config.simulation.block_tokens
    least = 1 if config.any_role else 2
    return bound(trace, Machine(kinds, slo, gpus, deployment.max_batch, deployment.startup_s, block_tokens, least))


def bound(trace: Sequence[TraceRequest], machine: Machine) -> Bound:
    """Compute the bound for `trace`, which must be in order of time."""
    demand = demand_of(trace, machine.kinds, machine.slo, machine.max_batch, machine.block_tokens)
    buckets = buckets_of(demand)
    served = floor(most_served(demand, buckets, machine.gpus) + 1e-6) + demand.free
    fleet = Fleet(machine.least_workers * min(kind.tp for kind in machine.kinds), machine.startup_s)
    needed = max(ceil(SHARE * demand.total - 1e-9) - demand.free, 0)
    held_s = None if needed > len(demand.prefill) else fewest_gpu_seconds(demand, buckets, fleet, needed)
    return Bound(
        slo_attainment=served / demand.total,
        fewest_gpu_hours=None if held_s is None else held_s / 3600,
        requests=demand.total,
        hopeless=demand.hopeless,
        free=demand.free,
        gpus=machine.gpus,
        prefill_gpu_s=float(demand.prefill.sum()),
        decode_gpu_s=float(demand.decode.sum()),
        rates={"prompt": demand.rates.prompt, "token": demand.rates.token, "context": demand.rates.context},
    )


def kinds_of(config: Config) -> Iterator[Kind]:
    """Yield every kind of worker that a policy may start: all sizes of the profiles that the config names."""
    wanted = config.simulation
    for name in sorted(config.profiles):
        perf: PerfModel = load_profile(name)
        for tp in sorted(set(perf.tp_sizes(Role.PREFILL)) & set(perf.tp_sizes(Role.DECODE))):
            own = max(perf.kv_capacity_tokens(tp), config.deployment.kv_tokens or 0)
            yield Kind(perf, tp, own if wanted.kv_tokens is None else wanted.kv_tokens, wanted.mixed_step_scale)


def most_served(demand: Demand, buckets: Buckets, gpus: int) -> float:
    """Return an upper bound on the requests of `demand` that `gpus` serve inside both objectives."""
    able = float(len(demand.prefill))
    if not able:
        return 0.0
    price = Program(demand, buckets).served_prices(gpus)
    # The program's prices are best for groups of requests. For single requests slightly different ones may be better.
    return min(able, *(served_bound(demand, buckets, gpus, price * factor) for factor in (0.8, 0.9, 1.0, 1.05, 1.15)))


def fewest_gpu_seconds(demand: Demand, buckets: Buckets, fleet: Fleet, served: int) -> float:
    """Return a lower bound on the GPU-seconds that workers hold to serve `served` requests of `demand`."""
    level, still = np.ones(buckets.count), np.zeros(buckets.count + 1)
    trials = [(0 * level, still), (level, still)]
    if served:
        trials.append(Program(demand, buckets).held_prices(fleet, served, demand.last_arrival_s))
    return max(held_bound(demand, buckets, fleet, served, price, ramp) for price, ramp in trials)


def bounds_of(plan: Plan) -> dict[str, Bound]:
    """Return the bound of each config by name. It does not depend on policies, so equal ones are computed once."""
    known: dict[str, Bound] = {}
    found = {}
    for name, config in plan.configs.items():
        data = config.model_dump(mode="json", include={"slo", "deployment", "simulation"})
        del data["deployment"]["prefill"], data["deployment"]["decode"]
        key = json.dumps([data, config.any_role])
        if key not in known:
            known[key] = bound_of(config, plan.trace)
        found[name] = known[key]
    return found


def with_regret(run: Run, bound: Bound) -> Run:
    """Return `run` with its regret."""
    return replace(run, result=run.result.model_copy(update={"regret": regret(run.result, bound)}))


def regret(result: Result, bound: Bound) -> Regret:
    """Return how much worse `result` is than `bound`."""
    reached, fewest = result.metrics.slo_attainment or 0.0, bound.fewest_gpu_hours
    beyond = None if fewest is None or reached < SHARE else result.metrics.gpu_hours - fewest
    return Regret(
        best_slo_attainment=bound.slo_attainment,
        slo_attainment=bound.slo_attainment - reached,
        fewest_gpu_hours=fewest,
        gpu_hours=beyond,
    )
