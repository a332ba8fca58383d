"""Simulates measured rows of mixtures of experts: closed-loop clients on one pool of workers, or on two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.perf.profile import Profile, Scale, Speculation, Transfer, read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.stock.routers import RoundRobin, RouterSettings
from pdplugins.resources import data_dir
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.core.worker import Hardware
from pdplugins.studies.measured.engines import GRAPHS_WITH_PROMPTS, balance_of, engine_of, group_tokens, groups_of
from pdplugins.studies.measured.rows import LAYERS, MATRICES, Row
from pdplugins.studies.measured.steps import PromptSteps
from pdplugins.workloads.trace import Round

ANY = Slo(1.0, 1.0)
REQUESTS = 10
"""Requests that each client sends, one after the other, with both measuring tools."""
SHORTEST = 0.8
"""InferenceMAX draws every length between this share of the nominal one and it; aiconfigurator's runner draws none."""
LINK_BYTES_PER_S = 50e9
"""KV transfer: 400 Gb/s of RDMA for each GPU of a worker."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The fitted numbers, the same for every row."""

    kernels: float = 1.0
    """Factor on the times of the kernel tables, of prompts and of decode steps."""
    launch_ms: float = 0.5
    """Milliseconds to launch what belongs to one of `MATRICES`, in engines that do so in each step with prompts."""
    acceptance: float = 0.7
    """Probability that a guessed token is right, if those before it were. Not fitted."""
    request_ms: float = 50.0
    """Milliseconds that every request spends outside the engine before its first token: HTTP, tokens, scheduling."""
    handoff_ms: float = 50.0
    """Milliseconds from the end of prefill to the first token, beyond the bytes, where two workers take part."""

    def inside(self, row: Row) -> Coefficients:
        """Return these with the default for each that the engines of `row` know nothing of."""
        none = Coefficients()
        return Coefficients(
            self.kernels,
            none.launch_ms if row.engine in GRAPHS_WITH_PROMPTS else self.launch_ms,
            self.acceptance if row.pools.draft_tokens else none.acceptance,
            none.request_ms,
            none.handoff_ms if row.pools.prefill is None else self.handoff_ms,
        )


EFFECTS = {
    "launches": "steps with prompts wait for their launches",
    "groups": "a prompt takes a step as long as one in every group, but for its experts in two pools",
    "balance": "prompts wait until every group has one",
    "requests": "every request spends time outside the engine",
    "handoffs": "a hand-over takes time beyond that of its bytes",
}
"""What is simulated beyond kernel tables and queues, so that a report can leave out each."""
TIMES = {"requests": "request_ms", "handoffs": "handoff_ms"}
"""Those that are nothing but one of the coefficients."""


@dataclass(frozen=True, slots=True)
class Felt:
    """The mean latencies that the clients of a row saw."""

    ttft_s: float
    tpot_s: float


def profile_path(row: Row, layout: str) -> Path:
    """Return where the step times of one layout of a row's engine are."""
    return data_dir("profiles") / "measured" / row.source / f"{layout}.json"


def refusal(row: Row) -> str | None:
    """Return why `row` cannot be simulated; None where it can."""
    for _, layout in filter(None, (row.pools.prefill, row.pools.decode)):
        if not profile_path(row, layout).is_file():
            return f"{row.mode}, {row.source}: no kernel tables for {layout}"
        perf, gpus = _perf(row, layout, Coefficients(), "")
        if row.isl_tokens + row.osl_tokens >= 0.99 * perf.kv_capacity_tokens(gpus):
            return f"{row.mode}, {row.source}: one request needs more KV cache than there is with {layout}"
    return None


def touches(effect: str, row: Row) -> bool:
    """Return whether one of `EFFECTS` has a part in `row`."""
    if effect == "launches":
        return row.engine not in GRAPHS_WITH_PROMPTS
    if effect == "balance":
        return balance_of(row) is not None
    if effect == "requests":
        return True
    if effect == "handoffs":
        return row.pools.prefill is not None
    _, layout = row.pools.prefill or row.pools.decode
    return groups_of(layout) > 1


def simulate(row: Row, coefficients: Coefficients, seed: int = 0, without: str = "") -> Felt:
    """Return the latencies that the clients of `row` see in the simulator: means over their requests.

    :param without: one of `EFFECTS` that is left out.
    """
    if without in TIMES:
        coefficients, without = replace(coefficients, **{TIMES[without]: 0.0}), ""
    inside = _simulate(row, coefficients.inside(row), seed, without)
    return Felt(inside.ttft_s + coefficients.request_ms / 1e3, inside.tpot_s)


@cache
def _simulate(row: Row, coefficients: Coefficients, seed: int, without: str) -> Felt:
    number, layout = row.pools.decode
    decode = Hardware(*_perf(row, layout, coefficients, without))
    first, prefills = decode, number
    if row.pools.prefill is not None:
        prefills, layout = row.pools.prefill
        first = Hardware(*_perf(row, layout, coefficients, without))
    two = row.pools.prefill is not None
    settings = SimSettings(
        prefill=prefills,
        decode=number if two else 0,
        engine=engine_of(row, decode.perf, decode.tp),
        hardware={Role.PREFILL: first, Role.DECODE: decode},
        first_token="transfer",  # noqa: S106 - no password
    )
    budget = prefills * first.tp + number * decode.tp
    deployment = Deployment(ANY, first.perf, budget, first.tp, decode.tp, 0.0, settings.engine.max_batch)
    router = RoundRobin(RouterSettings(colocated=not two), deployment)
    simulation = Simulation(
        deployment, settings, router, batch_scheduler=None if without == "balance" else balance_of(row)
    )
    outcome = simulation.run(_clients(row, seed))
    answered = [record for record in outcome.records if record.error is None]
    return Felt(fmean([r.ttft_s or 0.0 for r in answered]), fmean([r.tpot_s or 0.0 for r in answered]))


@cache
def _profile(path: Path) -> Profile:
    return read_profile(path)


@cache
def _perf(row: Row, layout: str, coefficients: Coefficients, without: str) -> tuple[TableModel, int]:
    """Return the step times of one layout of a row's engine with the coefficients applied, and its GPUs."""
    profile = _profile(profile_path(row, layout))
    (gpus,) = profile.decode
    layers, guesses = LAYERS[row.model], row.pools.draft_tokens
    changes = {
        "scale": Scale(prefill=coefficients.kernels, decode=coefficients.kernels, source="fitted"),
        "transfer": Transfer(
            latency_s=coefficients.handoff_ms / 1e3, bytes_per_s=LINK_BYTES_PER_S * gpus, source="see LINK_BYTES_PER_S"
        ),
        "speculation": None
        if not guesses
        else Speculation(draft_tokens=guesses, acceptance=coefficients.acceptance, draft_share=1 / layers),
    }
    launch_s, least_tokens, groups = 0.0, 0.0, groups_of(layout)
    if without != "launches" and touches("launches", row):
        launch_s = layers * MATRICES[row.model] * coefficients.launch_ms / 1e3
    if without != "groups" and groups > 1:
        least_tokens = groups * min((1 + _shortest(row)) / 2 * row.isl_tokens, group_tokens(row))
    own_experts = row.pools.prefill is not None
    return PromptSteps(profile.model_copy(update=changes), launch_s, least_tokens, own_experts=own_experts), gpus


def _clients(row: Row, seed: int) -> Iterator[Arrival]:
    """Yield the first request of every client, which carries the client's later requests."""
    rng = random.Random(f"{seed} {row.id}")  # noqa: S311 - lengths of prompts
    shortest = _shortest(row)

    def length(tokens: int) -> int:
        return max(rng.randint(round(shortest * tokens), tokens), 1)

    for _ in range(row.clients):
        lengths = [(length(row.isl_tokens), length(row.osl_tokens)) for _ in range(REQUESTS)]
        later = tuple(Round(0.0, isl, osl, history_tokens=0) for isl, osl in lengths[1:])
        yield Arrival(0.0, *lengths[0], rounds=later)


def _shortest(row: Row) -> float:
    return SHORTEST if row.inference_max else 1.0
