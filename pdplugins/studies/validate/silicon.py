"""Simulates measured rows: closed-loop clients on one engine that serves both phases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.perf.profile import Profile, Scale, read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.stock.routers import RoundRobin, RouterSettings
from pdplugins.resources import data_dir
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.studies.validate.rows import Row
from pdplugins.studies.validate.sources import ENGINES, PROTOCOLS, Protocol
from pdplugins.workloads.trace import Round

ANY = Slo(1.0, 1.0)
STEP_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The three fitted numbers, which are the same for every row."""

    prefill: float = 1.0
    """Factor on the time of prompts."""
    decode: float = 1.0
    """Factor on the time of decode steps."""
    step_ms: float = 0.0
    """Milliseconds that every step takes beyond its kernels."""


@dataclass(frozen=True, slots=True)
class Felt:
    """The latencies that the clients of a row saw."""

    ttft_s: float
    tpot_s: float


@cache
def profile_of(source: str) -> Profile:
    """Read the step times of a source of rows."""
    return read_profile(data_dir("profiles") / "validation" / f"{source}.json")


@cache
def model_of(source: str, coefficients: Coefficients) -> TableModel:
    """Return the step times of a source, with the coefficients applied."""
    scale = Scale(
        prefill=coefficients.prefill, decode=coefficients.decode, step_ms=coefficients.step_ms, source="fitted"
    )
    return TableModel(profile_of(source).model_copy(update={"scale": scale}))


def refusal(row: Row) -> str | None:
    """Return why `row` cannot be simulated: its source is unknown, or its profile lacks its TP size. Else None."""
    if row.source not in PROTOCOLS:
        return f"{row.source}: no protocol and no profile"
    perf = TableModel(profile_of(row.source))
    known = sorted(set(perf.tp_sizes(Role.PREFILL)) & set(perf.tp_sizes(Role.DECODE)))
    if row.tp in known:
        return None
    return f"{row.source}: its profile has no TP {row.tp}; it has {', '.join(map(str, known))}"


def simulate(row: Row, protocol: Protocol, coefficients: Coefficients, seed: int = 0) -> Felt:
    """Return the latencies that the clients of `row` see in the simulator."""
    perf, engine = model_of(row.source, coefficients), ENGINES[row.engine]
    batch = max(row.clients + protocol.slots, 1)
    if engine.reserves_answers:
        batch = min(batch, max(perf.kv_capacity_tokens(row.tp) // (row.isl_tokens + row.osl_tokens), 1))
    settings = SimSettings(
        prefill=1,
        decode=0,
        engine=EngineSettings(
            order=engine.order, step_tokens=STEP_TOKENS, whole_prompts=engine.whole_prompts, max_batch=batch
        ),
    )
    deployment = Deployment(ANY, perf, row.tp, row.tp, row.tp, 0.0, batch)
    router = RoundRobin(RouterSettings(colocated=True), deployment)
    outcome = Simulation(deployment, settings, router).run(clients(row, protocol, seed))
    answered = [record for record in outcome.records if record.error is None]
    middle = fmean if protocol.statistic == "mean" else median
    return Felt(middle([r.ttft_s or 0.0 for r in answered]), middle([r.tpot_s or 0.0 for r in answered]))


def clients(row: Row, protocol: Protocol, seed: int) -> Iterator[Arrival]:
    """Yield the first request of every client, which carries the client's later requests."""
    rng = random.Random(f"{seed} {row.id}")  # noqa: S311 - lengths of prompts

    def length(tokens: int) -> int:
        return max(rng.randint(round(protocol.shortest * tokens), round(protocol.longest * tokens)), 1)

    for _ in range(row.clients):
        lengths = [(length(row.isl_tokens), length(row.osl_tokens)) for _ in range(protocol.requests)]
        later = tuple(Round(0.0, isl, osl, history_tokens=0) for isl, osl in lengths[1:])
        yield Arrival(0.0, *lengths[0], rounds=later)
