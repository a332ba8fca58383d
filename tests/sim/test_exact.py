"""The engine that jumps over steps agrees with the one that takes every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.fleet import Hardware
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.protocols import EngineSettings
from pdplugins.sim.core.settings import Outcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.types import Deployment, PlainPerf, Role, Round, Slo

from .anyone import AnyPlanner, AnyPower, AnyRouter, AnyScheduler
from .reference import PlainEngine


class BentModel(PlainPerf):
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


class SlowModel(BentModel):
    """GPUs of another kind."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return 1.7 * super().prefill_s(tokens, tp) / tp

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 0.6 * super().decode_step_s(batch, context_tokens, tp) / tp

    def dense_s(self, tokens: float, tp: int) -> float:
        return 0.6 * self.prefill_s(0, tp) + 0.00007 * tokens

    def transfer_s(self, tokens: float) -> float:
        return 0.0013 + tokens * 9.1e-6


SLOW = Hardware(SlowModel(), 2)
CURVE = PowerCurve((400.0, 550.0, 700.0), (2.0, 1.3, 1.0), (1.4, 1.05, 1.0), 0.35)


def simulate(engine: type[Any], case: dict[str, Any]) -> Outcome:
    deployment = Deployment(Slo(1, 1), BentModel(), 8, 1, 1, startup_s=1.0, max_batch=8)
    router = AnyRouter(case["seed"], case["kinds"])
    policies = {name: make() for name, make in case.get("policies", {}).items()}
    return Simulation(deployment, case["settings"], router, engine=engine, **policies).run(case["workload"])


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


ANY_POLICIES = {
    "planner": lambda: AnyPlanner(0.7),
    "power": lambda: AnyPower(0.3),
    "batch_scheduler": lambda: AnyScheduler,
}
POLICIES = st.just({}) | st.sets(st.sampled_from(sorted(ANY_POLICIES))).map(
    lambda names: {name: ANY_POLICIES[name] for name in sorted(names)}
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
        hardware=draw(st.just({}) | st.just({Role.DECODE: SLOW})),
        extra=draw(st.just(()) | st.just(((Role.PREFILL, SLOW),))),
        flip=draw(st.sampled_from(["drain", "label"])),
        flip_s=draw(st.sampled_from([0.0, 0.4])),
        power=CURVE,
        deaths=draw(st.just(()) | st.tuples(st.tuples(st.floats(0.1, 3), st.sampled_from(["p0", "d0"])))),
    )
    kinds = draw(st.sampled_from(["P", "PL", "PSO", "S", "C", "T", "R", "PLSOCTR"]))
    return {
        "workload": workload,
        "settings": sim,
        "seed": draw(st.integers(0, 999)),
        "kinds": kinds,
        "policies": draw(POLICIES),
    }


@given(cases())
@settings(max_examples=300)
def test_every_request_has_the_same_times_as_token_by_token(case: dict[str, Any]) -> None:
    fast, plain = simulate(Engine, case), simulate(PlainEngine, case)
    assert fast.records == plain.records
    assert not [
        record for record in fast.records if record.error == "no worker to serve it" and not case["settings"].deaths
    ]
    assert (fast.preemptions, fast.retries, fast.gpu_hours) == (plain.preemptions, plain.retries, plain.gpu_hours)
    assert fast.scaling == plain.scaling
    assert fast.energy_j == pytest.approx(plain.energy_j, rel=1e-9)
    assert not {kind: count for kind, count in fast.policies.faults.items() if kind != "router"}


@pytest.mark.parametrize("engine", [Engine, PlainEngine])
def test_every_request_ends_once(engine: type[Any]) -> None:
    """Sanity of the reference itself: nothing is lost and every answer has its tokens."""
    workload = [Arrival(0.05 * n, 100 + 37 * n % 900, 1 + 13 * n % 70) for n in range(60)]
    case = {"workload": workload, "settings": SimSettings(2, 2, kv_tokens=6000), "seed": 1, "kinds": "PLSO"}
    records = simulate(engine, case).records
    assert sorted(int(record.id) for record in records) == list(range(60))
    assert all(record.error is None and record.ttft_s and record.ttft_s > 0 for record in records)


def test_a_request_that_starts_anew_and_waits_for_room_goes_on_waiting() -> None:
    """It has had a token when its first worker dies, and room for it is asked for while its prompt computes again."""
    settings = SimSettings(
        prefill=2,
        engine=EngineSettings(step_tokens=128, max_batch=2),
        first_token="prefill",
        overlap=True,
        deaths=((0.5, "p0"),),
    )
    workload = [Arrival(0.0, 100, 400), Arrival(0.0, 100, 300), Arrival(0.1, 500, 20)]
    case = {"settings": settings, "seed": 0, "kinds": "R", "workload": workload}
    fast, plain = simulate(Engine, case), simulate(PlainEngine, case)
    assert fast.records == plain.records
    assert [(record.decode_worker, record.error) for record in fast.records] == [("d0", None)] * 3
    assert fast.retries == 1
