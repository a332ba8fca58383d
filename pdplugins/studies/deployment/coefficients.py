"""The coefficients of the deployment program: P95 latency by degree, replicas and load, from the simulator (A.1).

Each phase is simulated separately, with the other one ideal, on the trace with its arrivals stretched to a load. A few
loads and pool sizes are simulated for each degree, and values in between are interpolated. In a pool of four or more,
a replica is assumed to behave as in a pool of four, because further replicas help less and less. Decode groups are also
simulated with a part of their prefills local, as the routing of section 4 does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.perf.steps import step_model
from pdplugins.policies.ampd.config import AmpdRouterSettings
from pdplugins.policies.ampd.planning import SHARES, Group, Option
from pdplugins.policies.ampd.router import AmpdRouter
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.core.worker import Hardware
from pdplugins.sim.run.running import arrival
from pdplugins.sim.run.setup import sizes_of_both
from pdplugins.studies.deployment.ideal import Ideal, PartlyLocal
from pdplugins.workloads.trace import TraceRequest

LOADS = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.3)
"""Simulated loads, as shares of the most that a replica can serve."""
POOLS = (1, 4)
"""Simulated numbers of replicas."""
LOCALS = (0, 2, 4)
"""Simulated parts of the prefills that run in their own decode group, out of `SHARES`."""
ROUNDS = 600
"""Simulated rounds of the trace at each point. The 30 slowest of them decide a P95."""
IDEAL_WORKERS = 4

Objective = Literal["slo", "latency"]
"""A plan minimises the P95 of TTFT and TPOT over their SLOs, or of the seconds that a round spends in a phase."""


@dataclass(frozen=True, slots=True)
class Curve:
    """P95 of one degree in one phase, over the load of each replica."""

    role: Role
    degree: int
    capacity: float
    """Most sessions/s that one replica can serve."""
    local: int
    """Parts of the prefills that it does itself, out of `SHARES`."""
    p95: tuple[tuple[float, ...], ...]
    """P95 for each of `POOLS` at each of `LOADS`."""

    def at(self, replicas: int, sessions_per_s: float) -> float:
        """Return the P95 of `replicas` that serve `sessions_per_s` together."""
        load = sessions_per_s / (replicas * self.capacity)
        alone, pooled = (_interpolate(values, load) for values in self.p95)
        most = POOLS[-1]
        weight = max(1 / replicas - 1 / most, 0.0) / (1 - 1 / most)
        return weight * alone + (1 - weight) * pooled


def _interpolate(values: Sequence[float], load: float) -> float:
    """Interpolate at `load`. Below the lightest load its value counts; beyond the heaviest the last slope continues."""
    if load <= LOADS[0]:
        return values[0]
    index = min(bisect_right(LOADS, load), len(LOADS) - 1)
    left, right = LOADS[index - 1], LOADS[index]
    return values[index - 1] + (values[index] - values[index - 1]) * (load - left) / (right - left)


@dataclass(frozen=True, slots=True)
class Profiler:
    """Simulates one phase of a deployment on the rounds of a trace."""

    deployment: Deployment
    trace: Sequence[TraceRequest]
    engine: EngineSettings
    objective: Objective

    def degrees(self, role: Role) -> list[int]:
        """Return the tensor-parallel sizes that can hold the longest prompt and answer of the trace."""
        perf = self.deployment.perf
        longest = max(prompt + output for one in self.trace for _, prompt, output in one.turns())
        known = set(perf.tp_sizes(role)) & set(sizes_of_both(perf))
        return sorted(tp for tp in known if perf.kv_capacity_tokens(tp) > longest)

    def points(self) -> int:
        """Return how many simulations `curves` runs."""
        kinds = len(self.degrees(Role.PREFILL)) + len(self.degrees(Role.DECODE)) * len(LOCALS)
        return kinds * len(POOLS) * len(LOADS)

    def curves(self) -> Iterator[Curve | None]:
        """Yield the curve of every degree and phase, and None after each simulation, for a progress display."""
        for role in Role:
            for degree in self.degrees(role):
                for local in LOCALS if role is Role.DECODE else (0,):
                    capacity = self._capacity(role, degree, local / SHARES)
                    rows = []
                    for pool in POOLS:
                        row = []
                        for load in LOADS:
                            row.append(self._p95(Group(role, degree, pool), load * pool * capacity, local / SHARES))
                            yield None
                        rows.append(tuple(accumulate(row, max)))  # more load is never faster, except by noise
                    yield Curve(role, degree, capacity, local, tuple(rows))

    def _capacity(self, role: Role, degree: int, local: float) -> float:
        """Return the most sessions/s that one replica can serve, which is a load of 1."""
        perf, turns = self.deployment.perf, [turn for one in self.trace for turn in one.turns()]
        steps = step_model(perf, degree)
        prefills_s = sum(steps.prefill([(prompt - history, history)]) for history, prompt, _ in turns)
        if role is Role.PREFILL:
            return len(self.trace) / prefills_s
        outputs = sum(output for _, _, output in turns)
        context = sum((prompt + output / 2) * output for _, prompt, output in turns) / outputs
        batch = max(min(self.deployment.max_batch, perf.kv_capacity_tokens(degree) / context), 1.0)
        decodes_s = outputs * perf.decode_step_s(batch, context, degree) / batch
        return len(self.trace) / (decodes_s + local * prefills_s)

    def _p95(self, group: Group, sessions_per_s: float, local: float) -> float:
        """Simulate `group` with the other phase ideal, and return the P95 of its own phase."""
        slo, perf = self.deployment.slo, self.deployment.perf
        ideal = Hardware(Ideal(slo.tpot_s), 1)
        prefills = group.role is Role.PREFILL
        other = Role.DECODE if prefills else Role.PREFILL
        settings = SimSettings(
            prefill=group.replicas if prefills else IDEAL_WORKERS,
            decode=IDEAL_WORKERS if prefills else group.replicas,
            engine=replace(self.engine, max_batch=1 << 30) if prefills else self.engine,
            hardware={group.role: Hardware(perf, group.degree), other: ideal},
            first_token="prefill",  # noqa: S106 - no password; so each wait counts for the phase that is waited for
        )
        deployment = replace(self.deployment, prefill_tp=group.degree, decode_tp=group.degree)
        router = PartlyLocal(AmpdRouter(AmpdRouterSettings(alpha=0.0, local=False), deployment), local)
        sessions = stretched(self.trace, ROUNDS, sessions_per_s)
        outcome = Simulation(deployment, settings, router).run(map(arrival, sessions))
        return phase_p95(outcome.records, group.role, slo, self.objective)


def phase_p95(records: Sequence[Record], role: Role, slo: Slo, objective: Objective) -> float:
    """Return the P95 latency of one phase. Decode includes its local prefills. Infinite when a round failed."""
    prefills, decodes = [], []
    ttft_s, tpot_s = (slo.ttft_s, slo.tpot_s) if objective == "slo" else (1.0, 1.0)
    for record in records:
        if record.error is not None or record.ttft_s is None or record.tpot_s is None:
            return float("inf")
        decodes.append(record.tpot_s / tpot_s * (1 if objective == "slo" else record.osl_tokens - 1))
        if role is Role.PREFILL or record.prefill_worker == record.decode_worker:
            prefills.append(record.ttft_s / ttft_s)
    sides = [prefills] if role is Role.PREFILL else [decodes, prefills]
    return max(float(np.percentile(values, 95)) for values in sides if values)


def stretched(trace: Sequence[TraceRequest], rounds: int, sessions_per_s: float) -> list[TraceRequest]:
    """Return the first sessions of `trace` with about `rounds` rounds, arriving at `sessions_per_s` on average."""
    counted = accumulate(1 + len(one.rounds) for one in trace)
    few = [one for one, so_far in zip(trace, counted, strict=True) if so_far <= rounds] or list(trace[:1])
    span_s = few[-1].arrival_s - few[0].arrival_s
    if span_s <= 0:
        return [replace(one, arrival_s=index / sessions_per_s) for index, one in enumerate(few)]
    factor = len(few) / (span_s * sessions_per_s)
    return [replace(one, arrival_s=(one.arrival_s - few[0].arrival_s) * factor) for one in few]


def options(curves: Sequence[Curve], sessions_per_s: float, gpus: int) -> list[Option]:
    """Return every group of up to `gpus` GPUs at every share of the traffic, with its P95: tau(n, k, share)."""
    return [
        Option(
            Group(curve.role, curve.degree, replicas),
            share,
            curve.at(replicas, sessions_per_s * share / SHARES),
            share * curve.local // SHARES,
        )
        for curve in curves
        for replicas in range(1, gpus // curve.degree + 1)
        for share in range(1, SHARES + 1)
    ]
