"""Simulates measured rows of mixtures of experts: closed-loop clients on one pool of workers, or on two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
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
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.fleet import Hardware
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.studies.measured.rows import Row
from pdplugins.workloads.trace import Round

ANY = Slo(1.0, 1.0)
REQUESTS = 10
"""Requests of each client, one after the other: both measuring tools send so many."""
SHORTEST = 0.8
"""InferenceMAX draws every length between this share of the nominal one and it; aiconfigurator's runner draws none."""
LINK_BYTES_PER_S = 50e9
"""KV transfer: 400 Gb/s of RDMA for each GPU of a worker."""
MOST_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The fitted numbers, the same for every row."""

    prefill: float = 1.0
    """Factor on the time of prompts."""
    decode: float = 1.0
    """Factor on the time of decode steps."""
    acceptance: float = 0.7
    """Probability that a guessed token is right, if those before it were."""
    request_ms: float = 50.0
    """Milliseconds that every request spends outside the engine before its first token: HTTP, tokens, scheduling."""
    handoff_ms: float = 50.0
    """Milliseconds from the end of prefill to the first token, beyond the bytes, where two workers take part."""

    def inside(self, row: Row) -> Coefficients:
        """Return these with the default for each that the engines of `row` know nothing of."""
        none = Coefficients()
        return Coefficients(
            self.prefill,
            self.decode,
            self.acceptance if row.pools.draft_tokens else none.acceptance,
            none.request_ms,
            none.handoff_ms if row.pools.prefill is None else self.handoff_ms,
        )


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
        perf, gpus = _perf(profile_path(row, layout), Coefficients(), 0)
        if row.isl_tokens + row.osl_tokens >= 0.99 * perf.kv_capacity_tokens(gpus):
            return f"{row.mode}, {row.source}: one request needs more KV cache than there is with {layout}"
    return None


def simulate(row: Row, coefficients: Coefficients, seed: int = 0) -> Felt:
    """Return the latencies that the clients of `row` see in the simulator: means over their requests."""
    inside = _simulate(row, coefficients.inside(row), seed)
    return Felt(inside.ttft_s + coefficients.request_ms / 1e3, inside.tpot_s)


@cache
def _simulate(row: Row, coefficients: Coefficients, seed: int) -> Felt:
    number, layout = row.pools.decode
    decode = Hardware(*_perf(profile_path(row, layout), coefficients, row.pools.draft_tokens))
    first = (number, decode)
    if row.pools.prefill is not None:
        prefills, layout = row.pools.prefill
        first = (prefills, Hardware(*_perf(profile_path(row, layout), coefficients, 0)))
    two = row.pools.prefill is not None
    settings = SimSettings(
        prefill=first[0],
        decode=number if two else 0,
        engine=_engine(row, decode),
        hardware={Role.PREFILL: first[1], Role.DECODE: decode},
        first_token="transfer",  # noqa: S106 - no password
    )
    budget = first[0] * first[1].tp + number * decode.tp
    deployment = Deployment(ANY, first[1].perf, budget, first[1].tp, decode.tp, 0.0, settings.engine.max_batch)
    router = RoundRobin(RouterSettings(colocated=not two), deployment)
    outcome = Simulation(deployment, settings, router).run(_clients(row, seed))
    answered = [record for record in outcome.records if record.error is None]
    return Felt(fmean([r.ttft_s or 0.0 for r in answered]), fmean([r.tpot_s or 0.0 for r in answered]))


def _engine(row: Row, decode: Hardware) -> EngineSettings:
    """Return how the engine of a row batches, as the tool that measured it sets it up."""
    whole = row.engine == "trtllm"
    batch = min(row.clients, row.pools.decode_batch or MOST_BATCH)
    if whole:  # GUARANTEED_NO_EVICT: a request is admitted with free KV capacity for its whole answer
        held = decode.perf.kv_capacity_tokens(decode.tp) // (row.isl_tokens + row.osl_tokens)
        batch = min(batch, max(held, 1))
    return EngineSettings(
        order="prefill_first" if row.engine == "sglang" and row.inference_max else "decode_first",
        step_tokens=_step_tokens(row),
        whole_prompts=whole,
        max_batch=batch,
    )


def _step_tokens(row: Row) -> int:
    if not row.inference_max:  # aiconfigurator's generator
        return row.isl_tokens + 1500 + (0 if row.engine == "sglang" else row.clients)
    if row.engine == "vllm":
        return 8192
    if row.engine == "sglang":
        return 32_768
    if row.model == "gpt-oss-120b":
        return 20_000
    ranks = 8 if row.pools.decode[1].startswith("dp") and row.pools.prefill is None else 1
    return max(row.clients + row.isl_tokens + 64, 8192) * ranks


@cache
def _profile(path: Path) -> Profile:
    return read_profile(path)


@cache
def _perf(path: Path, coefficients: Coefficients, guesses: int) -> tuple[TableModel, int]:
    """Return the step times of one layout with the coefficients applied, and its GPUs."""
    profile = _profile(path)
    (gpus,) = profile.decode
    layers = 61 if guesses else 1
    changes = {
        "scale": Scale(prefill=coefficients.prefill, decode=coefficients.decode, source="fitted"),
        "transfer": Transfer(
            latency_s=coefficients.handoff_ms / 1e3, bytes_per_s=LINK_BYTES_PER_S * gpus, source="see LINK_BYTES_PER_S"
        ),
        "speculation": None
        if not guesses
        else Speculation(draft_tokens=guesses, acceptance=coefficients.acceptance, draft_share=1 / layers),
    }
    return TableModel(profile.model_copy(update=changes)), gpus


def _clients(row: Row, seed: int) -> Iterator[Arrival]:
    """Yield the first request of every client, which carries the client's later requests."""
    rng = random.Random(f"{seed} {row.id}")  # noqa: S311 - lengths of prompts
    shortest = SHORTEST if row.inference_max else 1.0

    def length(tokens: int) -> int:
        return max(rng.randint(round(shortest * tokens), tokens), 1)

    for _ in range(row.clients):
        lengths = [(length(row.isl_tokens), length(row.osl_tokens)) for _ in range(REQUESTS)]
        later = tuple(Round(0.0, isl, osl, history_tokens=0) for isl, osl in lengths[1:])
        yield Arrival(0.0, *lengths[0], rounds=later)
