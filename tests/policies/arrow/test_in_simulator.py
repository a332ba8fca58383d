"""Arrow in its loop: the shipped config on simulated engines, which report loads as they are and lose nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pdplugins.config import find, load, parse
from pdplugins.results import Result
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic


def workload(rate: float, isl: int, osl: int, duration_s: float = 60) -> list[TraceRequest]:
    keys = {
        "seed": 0, "duration_s": duration_s, "arrivals": {"kind": "poisson", "rate": rate},
        "isl_tokens": {"kind": "lognormal", "median": isl, "sigma": 0.5},
        "osl_tokens": {"kind": "lognormal", "median": osl, "sigma": 0.5},
    }  # fmt: skip
    return list(synthetic(SyntheticSettings.model_validate(keys)))


def run(trace: list[TraceRequest], router: dict[str, Any] | None = None, **simulation: Any) -> Result:
    data = load(find("arrow")).model_dump(mode="json")
    data["router"] |= router or {}
    data["simulation"] |= simulation
    return simulate(parse(data), trace, trace_name="test", command="pytest")[0]


def faults(result: Result) -> int:
    return sum(count for name, count in result.counts.items() if name.startswith("faults"))


def test_a_prefill_heavy_load_takes_instances_from_decode() -> None:
    """From two and two: the pools end with three for prefill, and more requests are inside their SLOs than without."""
    trace = workload(rate=9, isl=2500, osl=20)
    moved, fixed = run(trace), run(trace, {"elastic": False})
    assert {(change.prefill, change.decode) for change in moved.scaling} == {(3, 1)}
    assert "TTFT would miss its SLO" in moved.scaling[0].reason
    assert fixed.scaling == []
    assert (moved.metrics.slo_attainment or 0) > (fixed.metrics.slo_attainment or 0) + 0.2
    assert (moved.requests.failed, faults(moved), faults(fixed)) == (0, 0, 0)


@pytest.mark.moderate
def test_a_decode_heavy_load_takes_instances_from_prefill() -> None:
    trace = workload(rate=20, isl=200, osl=1200)
    result = run(trace)
    assert result.scaling[0].prefill == 1
    assert result.scaling[0].decode == 3
    assert (result.requests.failed, faults(result)) == (0, 0)


@pytest.mark.moderate
def test_overload_of_both_phases_ends_and_settles() -> None:
    """Every request is served, and the pools do not swing while everything is overloaded."""
    result = run(workload(rate=40, isl=2500, osl=400, duration_s=30))
    assert result.requests.failed == 0
    assert len(result.scaling) <= 6
    assert faults(result) == 0


def test_records_name_the_worker_that_was_chosen_when_prefill_was_done() -> None:
    _, outcome = simulate(load(find("arrow")), workload(rate=5, isl=1000, osl=100), trace_name="test", command="pytest")
    assert all(record.prefill_worker and record.decode_worker for record in outcome.records)


@pytest.mark.parametrize("worker", ["p0", "d0"])
def test_a_worker_that_dies_is_survived(worker: str) -> None:
    result = run(workload(rate=5, isl=1000, osl=100), deaths=[{"at_s": 20, "worker": worker}])
    assert (result.requests.failed, faults(result)) == (0, 0)


def test_a_prompt_longer_than_any_kv_cache_fails_alone() -> None:
    trace = workload(rate=5, isl=1000, osl=100, duration_s=20)
    trace.insert(10, TraceRequest(trace[10].arrival_s, 3_000_000, 10))
    result = run(trace)
    assert result.requests.failed == 1
    assert (result.metrics.slo_attainment or 0) > 0.95
