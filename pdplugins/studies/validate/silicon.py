"""Simulates measured rows: closed-loop clients on one engine that serves both phases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean

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
from pdplugins.studies.validate.sources import SOURCES, Client
from pdplugins.workloads.trace import Round

ANY = Slo(1.0, 1.0)


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
class Setup:
    """What is read off the rows to fit on, and holds for all rows."""

    coefficients: Coefficients = Coefficients()
    one_less: frozenset[str] = frozenset()
    """Sources whose engine runs one request less than there are clients."""
    frontend_s: float = 0.0
    """Seconds that a frontend works on each request, one after the other."""


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


def kv_tokens_of(row: Row) -> int:
    """Return the tokens of KV cache of the engine of a row."""
    return model_of(row.source, Coefficients()).kv_capacity_tokens(row.tp)


def refusal(row: Row) -> str | None:
    """Return why `row` cannot be simulated; None where it can."""
    if row.source not in SOURCES:
        return f"{row.source}: no profile covers this model, GPU and engine together"
    perf = model_of(row.source, Coefficients())
    known = sorted(set(perf.tp_sizes(Role.PREFILL)) & set(perf.tp_sizes(Role.DECODE)))
    if row.tp not in known:
        return f"{row.source}: its profile has no TP {row.tp}; it has {', '.join(map(str, known))}"
    if row.isl_tokens + row.osl_tokens >= 0.99 * kv_tokens_of(row):
        return f"{row.source}: one request needs more KV cache than there is at TP {row.tp}"
    return None


def simulate(row: Row, setup: Setup, seed: int = 0) -> Felt:
    """Return the latencies that the clients of `row` see in the simulator: means over their requests."""
    perf, source = model_of(row.source, setup.coefficients), SOURCES[row.source]
    engine, batch = source.engine, max(row.clients - (row.source in setup.one_less), 1)
    if engine.reserves_answers:
        batch = min(batch, max(perf.kv_capacity_tokens(row.tp) // (row.isl_tokens + row.osl_tokens), 1))
    settings = SimSettings(
        prefill=1,
        decode=0,
        frontend_s=setup.frontend_s,
        engine=EngineSettings(
            order=engine.order,
            step_tokens=engine.step_tokens(row),
            whole_prompts=engine.whole_prompts,
            max_batch=batch,
        ),
    )
    deployment = Deployment(ANY, perf, row.tp, row.tp, row.tp, 0.0, batch)
    router = RoundRobin(RouterSettings(colocated=True), deployment)
    outcome = Simulation(deployment, settings, router).run(clients(row, source.client, seed))
    answered = [record for record in outcome.records if record.error is None]
    return Felt(fmean([r.ttft_s or 0.0 for r in answered]), fmean([r.tpot_s or 0.0 for r in answered]))


def clients(row: Row, client: Client, seed: int) -> Iterator[Arrival]:
    """Yield the first request of every client, which carries the client's later requests."""
    rng = random.Random(f"{seed} {row.id}")  # noqa: S311 - lengths of prompts

    def length(tokens: int) -> int:
        return max(rng.randint(round(client.shortest * tokens), tokens), 1)

    for _ in range(row.clients):
        lengths = [(length(row.isl_tokens), length(row.osl_tokens)) for _ in range(client.requests)]
        later = tuple(Round(0.0, isl, osl, history_tokens=0) for isl, osl in lengths[1:])
        yield Arrival(0.0, *lengths[0], rounds=later)
