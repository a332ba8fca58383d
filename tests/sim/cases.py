"""Small clusters and what happens to them, for property tests."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import strategies as st

from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.core.views import LiveView
from pdplugins.types import Deployment, Role, Round, Slo, Terms
from tests.sim.anyone import AnyFlow, AnyPlanner, AnyPower, AnyRouter, AnyScheduler
from tests.sim.models import SLOW, BentModel
from tests.sim.reference import PlainEngine, PlainView

CURVE = PowerCurve((400.0, 550.0, 700.0), (2.0, 1.3, 1.0), (1.4, 1.05, 1.0), 0.35)


DEPLOYMENT = Deployment(Slo(1, 1), BentModel(), 8, 1, 1, startup_s=1.0, max_batch=8)


def simulate(case: dict[str, Any], engine: type[Any] = Engine, **more: Any) -> RunOutcome:
    """Run a case; `more` policies replace the case's own."""
    policies: dict[str, Any] = {"router": AnyRouter(case["seed"], case["kinds"])}
    policies |= {name: make() for name, make in case.get("policies", {}).items()}
    policies |= more
    view = PlainView if engine is PlainEngine else LiveView
    with mock.patch("pdplugins.sim.core.fleet.LiveView", view):
        return Simulation(DEPLOYMENT, case["settings"], engine=engine, **policies).run(case["workload"])


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
        "terms": st.none() | st.none() | st.builds(Terms, tpot_s=st.sampled_from([None, 0.01, 0.02])),
    }
)


ANY_POLICIES = {
    "planner": lambda: AnyPlanner(0.7),
    "power": lambda: AnyPower(0.3),
    "batch_scheduler": lambda: AnyScheduler,
    "flow": AnyFlow,
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
            Arrival(
                now, isl, request["osl"], blocks, session, 0, rounds, None if rounds else request["cancel"],
                request["terms"],
            )
        )  # fmt: skip
    engine = EngineSettings(
        order=draw(st.sampled_from(["decode_first", "prefill_first"])),
        step_tokens=draw(st.sampled_from([128, 700, 8192])),
        max_batch=draw(st.sampled_from([2, 8, 64])),
        watermark=draw(st.sampled_from([0.0, 0.02])),
        block_tokens=64,
        whole_prompts=draw(st.booleans()),
        mixed_step_scale=draw(st.sampled_from([1.0, 0.8, 1.5])),
        begin_s=draw(st.sampled_from([0.0, 0.0, 0.02])),
    )
    sim = SimSettings(
        prefill=draw(st.integers(1, 2)),
        decode=draw(st.integers(1, 2)),
        engine=engine,
        kv_tokens=draw(st.sampled_from([1500, 2500, 100_000])),
        first_token=draw(st.sampled_from(["prefill", "transfer", "decode"])),
        frontend_s=draw(st.sampled_from([0.0, 0.0, 0.03])),
        late_handoff_s=draw(st.sampled_from([None, None, 0.0, 0.05])),
        late_step_s=draw(st.sampled_from([0.0, 0.02])),
        late_step_token_s=draw(st.sampled_from([0.0, 1e-5])),
        polled_handoff=draw(st.booleans()),
        overlap=draw(st.booleans()),
        history=draw(st.sampled_from(["transfer", "recompute"])),
        hardware=draw(st.just({}) | st.just({Role.DECODE: SLOW})),
        extra=draw(st.just(()) | st.just(((Role.PREFILL, SLOW),))),
        flip=draw(st.sampled_from(["drain", "label"])),
        flip_s=draw(st.sampled_from([0.0, 0.4])),
        power=CURVE,
        deaths=draw(st.just(()) | st.tuples(st.tuples(st.floats(0.1, 3), st.sampled_from(["p0", "d0"])))),
    )
    kinds = draw(st.sampled_from(["P", "PL", "PSO", "S", "C", "T", "R", "K", "PLSOCTRK"]))
    return {
        "workload": workload,
        "settings": sim,
        "seed": draw(st.integers(0, 999)),
        "kinds": kinds,
        "policies": draw(POLICIES),
    }
