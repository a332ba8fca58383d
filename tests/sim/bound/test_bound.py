"""No policy beats the bound, and where the answer is plain the bound is near it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.perf.profile import Profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.stock import routers
from pdplugins.sim.bound.api import Bound, Machine, bound, regret
from pdplugins.sim.bound.prices import Fleet, buckets_of, held_bound, served_bound
from pdplugins.sim.bound.demand import demand_of
from pdplugins.sim.bound.steps import Kind
from pdplugins.sim.contracts import EngineSettings
from pdplugins.sim.run import arrival, summarise
from pdplugins.sim.settings import Outcome, SimSettings
from pdplugins.sim.simulation import Simulation
from pdplugins.types import Deployment, PerfModel, PlannerView, ScalePlan, Slo, TraceRequest

from ..test_exact import AnyRouter, BentModel

MAX_BATCH = 8


def table(dense: bool) -> TableModel:
    """A small profile; `dense` keeps attention apart."""
    lengths = (16, 64, 256, 1024, 4096)
    part = {"source": "made up for a test"}
    return TableModel(
        Profile.model_validate(
            {
                "schema": 1, "gpu": "test", "model": "test", "kind": "modelled",
                "provenance": {**part, "command": "none"},
                "memory": {"gpu_bytes": 3e6, "reserved_bytes": 0, "model_bytes": 1e6, "kv_bytes_per_token": 400, **part},
                "bandwidth": {"bytes_per_s": 1e12, "utilisation": 0.6, **part},
                "transfer": {"latency_s": 0.002, "bytes_per_s": 1e8, **part},
                "scale": {"prefill": 1, "decode": 1, **part},
                "prefill": {
                    tp: {"tokens": lengths, "raw_ms": [(9 + 0.12 * n + 3e-5 * n * n) / tp**0.8 for n in lengths]}
                    for tp in (1, 2)
                },
                "dense": {
                    tp: {"tokens": lengths, "raw_ms": [(9 + 0.12 * n) / tp**0.8 for n in lengths]} for tp in (1, 2)
                }
                if dense
                else {},
                "decode": {
                    tp: {
                        "batch": (1, 4, 8),
                        "context_tokens": (64, 512, 2048),
                        "raw_ms": [
                            [(9 + 0.3 * b + 2e-4 * b * c) / tp**0.8 for c in (64, 512, 2048)] for b in (1, 4, 8)
                        ],
                    }
                    for tp in (1, 2)
                },
            }
        )
    )  # fmt: skip


MODELS: dict[str, PerfModel] = {"bent": BentModel(), "table": table(dense=False), "dense": table(dense=True)}


class Restless:
    """Wants other pools at every tick."""

    interval_s = 1.0

    def __init__(self, seed: int, gpus: int) -> None:
        self._dice, self._gpus = random.Random(seed), gpus

    def plan(self, view: PlannerView) -> ScalePlan:
        prefill = self._dice.randint(1, self._gpus - 1)
        return ScalePlan(prefill, self._dice.randint(1, self._gpus - prefill), "restless")


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    dice = random.Random(draw(st.integers(0, 2**32)))
    pace = draw(st.sampled_from([0.0, 0.01, 0.05, 0.5]))
    low, high = draw(st.sampled_from([(0, 3.3), (2, 3.3), (2.5, 3.0)]))
    longest = draw(st.sampled_from([0.5, 1, 2]))
    blocks = draw(st.sampled_from([0, 0, 3]))
    now_s, trace = 0.0, []
    for _ in range(draw(st.integers(1, 60))):
        isl = round(10 ** dice.uniform(low, high))
        shared = tuple(dice.randint(1, 3) * 10 + place for place in range(min(blocks, isl // 512)))
        trace.append(TraceRequest(now_s, isl, round(10 ** dice.uniform(0, longest)), shared))
        now_s += dice.expovariate(1) * pace
    return {
        "trace": trace,
        "model": draw(st.sampled_from(sorted(MODELS))),
        "tp": draw(st.sampled_from([1, 2])),
        "slo": Slo(draw(st.sampled_from([0.05, 0.2, 0.5, 2.0])), draw(st.sampled_from([0.011, 0.013, 0.02, 0.1]))),
        "workers": (draw(st.integers(1, 2)), draw(st.integers(1, 3))),
        "router": draw(st.sampled_from(["together", "apart", "any"])),
        "planner": draw(st.booleans()),
        "kv": draw(st.sampled_from([None, 4000])),
        "order": draw(st.sampled_from(["decode_first", "prefill_first"])),
        "step_tokens": draw(st.sampled_from([16, 256, 8192])),
        "seed": draw(st.integers(0, 9)),
    }


def play(case: dict[str, Any]) -> tuple[Outcome, Bound]:
    """Simulate a case, and compute its bound."""
    perf = MODELS[case["model"]]
    tp = 1 if case["model"] == "bent" else case["tp"]
    gpus = sum(case["workers"]) * tp
    deployment = Deployment(case["slo"], perf, gpus, tp, tp, startup_s=0.5, max_batch=MAX_BATCH)
    stock = routers.LeastLoaded(routers.RouterSettings(colocated=case["router"] == "together"), deployment)
    simulation = Simulation(
        deployment,
        SimSettings(
            *case["workers"],
            engine=EngineSettings(order=case["order"], step_tokens=case["step_tokens"], max_batch=MAX_BATCH),
            kv_tokens=case["kv"],
        ),
        AnyRouter(case["seed"], "LOSC") if case["router"] == "any" else stock,
        planner=Restless(case["seed"], sum(case["workers"])) if case["planner"] else None,
    )
    kinds = [
        Kind(perf, size, case["kv"] or perf.kv_capacity_tokens(size))
        for size in ((1,) if case["model"] == "bent" else (1, 2))
    ]
    machine = Machine([kind for kind in kinds if kind.tp <= gpus], case["slo"], gpus, MAX_BATCH, 0.5)
    return simulation.run(map(arrival, case["trace"])), bound(case["trace"], machine)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_no_policy_beats_it(case: dict[str, Any]) -> None:
    outcome, best = play(case)
    _, metrics = summarise(outcome, case["slo"])
    assert metrics.slo_attainment is not None
    assert metrics.slo_attainment <= best.slo_attainment + 1e-12
    if metrics.slo_attainment >= 0.99:
        assert best.fewest_gpu_hours is not None
        assert metrics.gpu_hours >= best.fewest_gpu_hours * (1 - 1e-9)
