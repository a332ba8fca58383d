"""The engine that jumps over steps agrees with the one that takes every step."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.sim.contracts import EngineSettings
from pdplugins.sim.engine import Engine
from pdplugins.sim.flight import Arrival
from pdplugins.sim.settings import Outcome, SimSettings
from pdplugins.sim.simulation import Simulation
from pdplugins.types import Deployment, Placement, Request, Round, Slo, WorkerView

from .reference import PlainEngine


class BentModel:
    """A model with bends, so that closed forms have pieces to get wrong."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return 0.011 + 0.000131 * tokens + 3.1e-8 * tokens * tokens

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        bend = max(context_tokens - 300, 0) * 1.7e-6 + max(context_tokens - 700, 0) * 2.3e-6
        return 0.0093 + 0.00017 * batch + batch * (1.9e-7 * context_tokens + 0.1 * bend)

    def transfer_s(self, tokens: float) -> float:
        return 0.0031 + tokens * 5.3e-6

    def kv_capacity_tokens(self, tp: int) -> int:
        return 100_000

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e9

    def tp_sizes(self, role: object) -> tuple[int, ...]:
        return (1,)

    def decode_contexts(self, tp: int) -> tuple[float, ...]:
        return (100.0, 300.0, 700.0, 1500.0)


class AnyRouter:
    """Places requests anyhow: anywhere, split anywhere, or open until prefill is done; sometimes by load."""

    def __init__(self, seed: int, kinds: str) -> None:
        self._dice = random.Random(seed)
        self._kinds = kinds

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        kind = self._dice.choice(self._kinds)
        first, second = self._dice.choice(workers), self._dice.choice(workers)
        if kind == "L":
            first = min(workers, key=lambda w: (w.load.queued_tokens + w.load.running_tokens, w.id))
            second = min(workers, key=lambda w: (w.load.running_requests + w.load.queued_requests, w.id))
        if kind == "T":
            first = min(workers, key=lambda w: (w.load.recent_ttft_s or 0.0, w.id))
            second = max(workers, key=lambda w: (w.load.recent_tbt_s or 0.0, w.id))
        split = request.prompt_tokens
        if kind == "C":
            first = max(workers, key=lambda w: (sum(block in w.cached_blocks for block in request.blocks), w.id))
        if kind == "S":
            split = self._dice.randint(0, split + 30)
        return Placement(first.id, None if kind == "O" else second.id, split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        second = self._dice.choice(workers)
        if self._dice.random() < 0.5:
            second = min(workers, key=lambda w: (w.load.recent_tbt_s or 0.0, w.load.running_tokens, w.id))
        return Placement(placement.first, second.id, placement.split)


def simulate(engine: type[Any], case: dict[str, Any]) -> Outcome:
    deployment = Deployment(Slo(1, 1), BentModel(), 8, 1, 1, startup_s=3.0, max_batch=8)
    router = AnyRouter(case["seed"], case["kinds"])
    return Simulation(deployment, case["settings"], router, engine=engine).run(case["workload"])


HISTORY = st.none() | st.none() | st.integers(0, 900)
ROUNDS = st.lists(st.builds(Round, st.floats(0, 2), st.integers(1, 300), st.integers(1, 40), HISTORY), max_size=2)
REQUESTS = st.fixed_dictionaries(
    {
        "gap": st.floats(0, 0.4),
        "isl": st.integers(1, 1200),
        "osl": st.integers(1, 120),
        "cancel": st.none() | st.none() | st.floats(0.01, 3),
        "blocks": st.integers(0, 3),
        "rounds": st.just([]) | ROUNDS,
    }
)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A small cluster and what happens to it."""
    workload, now = [], 0.0
    for number, request in enumerate(draw(st.lists(REQUESTS, min_size=1, max_size=14))):
        now += request["gap"]
        rounds = tuple(request["rounds"])
        blocks = tuple(range(request["blocks"])) if not rounds else ()
        isl = max(request["isl"], 64 * len(blocks))
        session = f"s{number}" if rounds else None
        workload.append(
            Arrival(now, isl, request["osl"], blocks, session, 0, rounds, None if rounds else request["cancel"])
        )
    engine = EngineSettings(
        order=draw(st.sampled_from(["decode_first", "prefill_first"])),
        step_tokens=draw(st.sampled_from([128, 700, 8192])),
        max_batch=draw(st.sampled_from([2, 8, 64])),
        watermark=draw(st.sampled_from([0.0, 0.02])),
        block_tokens=64,
        whole_prompts=draw(st.booleans()),
    )
    sim = SimSettings(
        prefill=draw(st.integers(1, 2)),
        decode=draw(st.integers(1, 2)),
        engine=engine,
        kv_tokens=draw(st.sampled_from([1500, 2500, 100_000])),
        first_token=draw(st.sampled_from(["prefill", "transfer", "decode"])),
        overlap=draw(st.booleans()),
        history=draw(st.sampled_from(["transfer", "recompute"])),
        deaths=draw(st.just(()) | st.tuples(st.tuples(st.floats(0.1, 3), st.sampled_from(["p0", "d0"])))),
    )
    kinds = draw(st.sampled_from(["P", "PL", "PSO", "S", "C", "T", "PLSOCT"]))
    return {"workload": workload, "settings": sim, "seed": draw(st.integers(0, 999)), "kinds": kinds}


@given(cases())
@settings(max_examples=300, deadline=None)
def test_every_request_has_the_same_times_as_token_by_token(case: dict[str, Any]) -> None:
    fast, plain = simulate(Engine, case), simulate(PlainEngine, case)
    assert fast.records == plain.records
    assert not [
        record for record in fast.records if record.error == "no worker to serve it" and not case["settings"].deaths
    ]
    assert (fast.preemptions, fast.retries, fast.gpu_hours) == (plain.preemptions, plain.retries, plain.gpu_hours)


@pytest.mark.parametrize("engine", [Engine, PlainEngine])
def test_every_request_ends_once(engine: type[Any]) -> None:
    """Sanity of the reference itself: nothing is lost and every answer has its tokens."""
    workload = [Arrival(0.05 * n, 100 + 37 * n % 900, 1 + 13 * n % 70) for n in range(60)]
    case = {"workload": workload, "settings": SimSettings(2, 2, kv_tokens=6000), "seed": 1, "kinds": "PLSO"}
    records = simulate(engine, case).records
    assert sorted(int(record.id) for record in records) == list(range(60))
    assert all(record.error is None and record.ttft_s and record.ttft_s > 0 for record in records)
