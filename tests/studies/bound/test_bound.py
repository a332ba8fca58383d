"""No policy beats the bound, and where the answer is plain the bound is near it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pdplugins.config import parse
from pdplugins.errors import ConfigError
from pdplugins.perf.profile import Profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.stock import routers
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.running import arrival
from pdplugins.sim.run.simulate import summarise
from pdplugins.studies.bound.api import Machine, bound, bound_of
from pdplugins.studies.bound.demand import demand_of
from pdplugins.studies.bound.prices import Fleet, RangeMinimum, buckets_of, held_bound, served_bound
from pdplugins.studies.bound.steps import Kind
from pdplugins.types import Deployment, PerfModel, PlannerView, Role, Round, ScalePlan, Slo, TraceRequest
from tests.command_line import app
from tests.sim.anyone import AnyRouter
from tests.sim.models import BentModel

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
                "memory": {
                    "gpu_bytes": 3e6, "reserved_bytes": 0, "model_bytes": 1e6, "kv_bytes_per_token": 400, **part,
                },
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
    rounds = draw(st.sampled_from([(0,), (0,), (0, 1, 2)]))
    now_s, trace = 0.0, []
    for _ in range(draw(st.integers(1, 60))):
        isl = round(10 ** dice.uniform(low, high))
        shared = tuple(dice.randint(1, 3) * 10 + place for place in range(min(blocks, isl // 512)))
        later = tuple(Round(dice.random(), dice.randint(1, 300), 5) for _ in range(dice.choice(rounds)))
        trace.append(TraceRequest(now_s, isl, round(10 ** dice.uniform(0, longest)), shared, rounds=later))
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
        "first_token": draw(st.sampled_from(["prefill", "transfer", "decode"])),
        "overlap": draw(st.booleans()),
        "mixed": draw(st.sampled_from([1.0, 1.0, 0.5, 1.5])),
        "seed": draw(st.integers(0, 9)),
    }


def play(case: dict[str, Any]) -> tuple[RunOutcome, Machine]:
    """Simulate a case; return with it what its bound is for."""
    perf = MODELS[case["model"]]
    tp = 1 if case["model"] == "bent" else case["tp"]
    gpus = sum(case["workers"]) * tp
    deployment = Deployment(case["slo"], perf, gpus, tp, tp, startup_s=0.5, max_batch=MAX_BATCH)
    stock = routers.LeastLoaded(routers.RouterSettings(colocated=case["router"] == "together"), deployment)
    simulation = Simulation(
        deployment,
        SimSettings(
            *case["workers"],
            engine=EngineSettings(
                order=case["order"],
                step_tokens=case["step_tokens"],
                max_batch=MAX_BATCH,
                mixed_step_scale=case["mixed"],
            ),
            kv_tokens=case["kv"],
            first_token=case["first_token"],
            overlap=case["overlap"],
        ),
        AnyRouter(case["seed"], "LOSC") if case["router"] == "any" else stock,
        planner=Restless(case["seed"], sum(case["workers"])) if case["planner"] else None,
    )
    sizes = [size for size in perf.tp_sizes(Role.DECODE) if size <= gpus]
    kinds = [Kind(perf, size, case["kv"] or perf.kv_capacity_tokens(size), case["mixed"]) for size in sizes]
    return simulation.run(map(arrival, case["trace"])), Machine(kinds, case["slo"], gpus, MAX_BATCH, 0.5)


@pytest.mark.moderate
@given(cases(), st.integers(0, 9))
@settings(max_examples=25)
def test_no_policy_beats_it(case: dict[str, Any], seed: int) -> None:
    """Neither the bound of the program's prices nor that of any others, for SLO attainment and for GPU-hours."""
    outcome, machine = play(case)
    trace = case["trace"]
    best = bound(trace, machine)
    _, metrics = summarise(outcome, case["slo"])
    assert metrics.slo_attainment is not None
    assert metrics.slo_attainment <= best.slo_attainment + 1e-12
    demand = demand_of(trace, machine.kinds, machine.slo, MAX_BATCH, machine.block_tokens)
    buckets = buckets_of(demand)
    dice = np.random.default_rng(seed)
    price = dice.exponential(size=buckets.count) * (dice.random(buckets.count) < 0.5) * 10.0 ** dice.integers(-2, 3)
    assert (
        metrics.slo_attainment * demand.total <= demand.free + served_bound(demand, buckets, machine.gpus, price) + 1e-6
    )
    if metrics.slo_attainment >= 0.99:
        assert best.fewest_gpu_hours is not None
        held_s = 3600 * metrics.gpu_hours * (1 + 1e-9)
        assert 3600 * best.fewest_gpu_hours <= held_s
        ramp, fleet = dice.random(buckets.count + 1), Fleet(2, machine.startup_s)
        needed = max(-(-99 * demand.total // 100) - demand.free, 0)
        assert held_bound(demand, buckets, fleet, needed, price, ramp) <= held_s


def machine(slo: Slo, gpus: int = 2, model: str = "dense") -> Machine:
    perf = MODELS[model]
    return Machine([Kind(perf, 1, perf.kv_capacity_tokens(1))], slo, gpus, MAX_BATCH, 30.0)


def test_a_burst_of_prompts_is_bound_by_what_the_gpus_compute_in_time() -> None:
    """100 prompts of 1000 tokens at once, 2 GPUs, 2 s: at best 2 * 2 / (0.12 + attention 0.03) = 26 are in time."""
    best = bound([TraceRequest(0.0, 1000, 1)] * 100, machine(Slo(2.0, 1.0)))
    assert 0.24 <= best.slo_attainment <= 0.29


@pytest.mark.moderate
def test_a_tight_tpot_makes_tokens_dear() -> None:
    """A step of one request takes 9.5 ms, of eight 13 ms: at 9.7 ms each token needs nearly a step of its own."""
    trace = [TraceRequest(0.0, 500, 50)] * 8
    tight, loose = (bound(trace, machine(Slo(10.0, tpot_s), 1)) for tpot_s in (0.0097, 0.1))
    assert tight.decode_gpu_s > 3 * loose.decode_gpu_s


def test_what_no_worker_serves_in_time_is_hopeless() -> None:
    trace = [TraceRequest(0.0, 4000, 5), TraceRequest(1.0, 100, 5)]
    best = bound(trace, machine(Slo(0.3, 1.0)))
    assert (best.hopeless, best.slo_attainment, best.fewest_gpu_hours) == (1, 0.5, None)


def test_idle_pools_cost_their_time() -> None:
    """Two requests an hour apart: one GPU of each role is held all the time."""
    best = bound([TraceRequest(0.0, 10, 1), TraceRequest(3600.0, 10, 1)], machine(Slo(1.0, 1.0)))
    assert best.fewest_gpu_hours == pytest.approx(2.0, rel=1e-3)


def test_one_worker_is_enough_where_it_serves_both_phases() -> None:
    """Two requests an hour apart, and one GPU all the time."""
    trace = [TraceRequest(0.0, 10, 1), TraceRequest(3600.0, 10, 1)]
    either = {"flip": "label"}
    held = [bound_of(parse({"simulation": simulation}), trace).fewest_gpu_hours for simulation in ({}, either)]
    assert held == [pytest.approx(2.0, rel=1e-3), pytest.approx(1.0, rel=1e-3)]


def test_a_bound_that_fails_loses_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before the simulation, on which it does not depend."""

    def fails(*_: object) -> None:
        raise ConfigError("no bound")

    monkeypatch.setattr("pdplugins.studies.bound.api.bounds_of", fails)
    monkeypatch.setattr("pdplugins.sim.run.compare.run_one", lambda *_: pytest.fail("it ran"))
    with pytest.raises(ConfigError, match="no bound"):
        CliRunner().invoke(app, ["simulate", "dopd", "--trace", "demo", "--bound"], catch_exceptions=False)


def test_a_start_is_charged() -> None:
    """A burst that needs four GPUs in the middle of a quiet trace: they start before it, or are held from the start."""
    quiet = [TraceRequest(float(second), 10, 1) for second in range(0, 1200, 10)]
    burst = [TraceRequest(600.0 + index / 100, 1000, 1) for index in range(100)]
    trace = sorted(quiet + burst, key=lambda request: request.arrival_s)
    slow, fast = (
        bound(trace, Machine(m.kinds, m.slo, 8, MAX_BATCH, startup_s)).fewest_gpu_hours
        for m in [machine(Slo(2.0, 1.0))]
        for startup_s in (60.0, 0.0)
    )
    assert slow is not None
    assert fast is not None
    assert slow > fast + 60 / 3600


@pytest.mark.moderate
def test_a_shared_prefix_may_be_cached() -> None:
    def work(*gaps_s: float) -> float:
        trace = [TraceRequest(gap_s, 1100, 1, (1, 2)) for gap_s in gaps_s]
        return bound(trace, machine(Slo(2.0, 1.0))).prefill_gpu_s

    assert work(0.0, 9.0) == pytest.approx(work(0.0) + work(9.0) * 76 / 1100, rel=0.2)
    assert work(0.0, 1.0) < work(0.0, 9.0)  # the second may have computed it for the first


def test_later_rounds_are_free() -> None:
    trace = [TraceRequest(0.0, 4000, 5, rounds=(Round(1.0, 10, 5),))]
    best = bound(trace, machine(Slo(0.3, 1.0)))
    assert (best.requests, best.free, best.slo_attainment) == (2, 1, 0.5)


def test_the_smallest_of_a_range_is_found() -> None:
    dice = np.random.default_rng(0)
    values = dice.random(37)
    first = dice.integers(0, 37, 200)
    last = np.minimum(first + dice.integers(0, 37, 200), 36)
    expected = [values[a : b + 1].min() for a, b in zip(first, last, strict=True)]
    assert RangeMinimum(values)(first, last) == pytest.approx(expected)
