"""What DOPD is for: at equal GPU-hours, load that drifts is served better than by any fixed pools."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pdplugins.config import parse
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic

pytestmark = pytest.mark.long

CYCLE_S, LOW, HIGH, PARTS = 1500.0, 0.5, 9.0, 10
MARGIN = 0.05
"""By how much DOPD must do better, as a share of the requests."""


def drifting(seed: int) -> list[TraceRequest]:
    """One cycle of the load, from `LOW` to `HIGH` requests per second and back, over 25 minutes."""

    def rate(part: int) -> float:
        return (LOW + HIGH) / 2 - (HIGH - LOW) / 2 * math.cos(2 * math.pi * part / PARTS)

    phases = [
        {"duration_s": CYCLE_S / PARTS, "arrivals": {"kind": "ramp", "rate": rate(part), "to_rate": rate(part + 1)}}
        for part in range(PARTS)
    ]
    lengths = {"isl_tokens": {"kind": "lognormal", "median": 2500, "sigma": 0.3, "high": 8000}, "osl_tokens": 120}
    return list(synthetic(SyntheticSettings.model_validate({"seed": seed, "phases": phases, **lengths})))


def served(trace: list[TraceRequest], prefill: int, decode: int, **planner: Any) -> tuple[float, float]:
    """Return the SLO attainment and the GPU-hours of a run that starts with these pools."""
    pools = {"prefill": {"replicas": prefill, "tp": 1}, "decode": {"replicas": decode, "tp": 2}}
    deployment = {"profile": "h100/llama-3.1-70b-fp8", "gpu_budget": 64, "startup_s": 30, **pools}
    policies = {"router": "dopd", "batch_scheduler": "dopd", **planner}
    config = parse({"slo": {"ttft_s": 2.0, "tpot_s": 0.08}, "deployment": deployment, **policies}, "test")
    metrics = simulate(config, trace, trace_name="drift", command="test")[0].metrics
    assert metrics.slo_attainment is not None
    return metrics.slo_attainment, metrics.gpu_hours


def fixed_at(trace: list[TraceRequest], gpu_hours: float) -> float:
    """Return the best attainment of fixed pools for `gpu_hours`, also of two of them that share the time.

    For each decode pool, attainment is taken as linear between the two prefill pools around `gpu_hours`.
    """
    found = []
    for decode in (1, 2):
        most = int(gpu_hours * 3600 / CYCLE_S) - 2 * decode
        (low, cheap), (high, dear) = (served(trace, prefill, decode) for prefill in (most, most + 1))
        assert gpu_hours <= dear
        # Too few workers run on after the cycle and may cost more; what they attain counts all the same.
        found.append(low + (high - low) * max(gpu_hours - cheap, 0.0) / (dear - cheap))
    return max(found)


@pytest.mark.parametrize("seed", [1, 2])
def test_load_that_drifts_is_served_better_than_by_any_fixed_pools_of_as_many_gpu_hours(seed: int) -> None:
    trace = drifting(seed)
    attainment, gpu_hours = served(trace, 1, 1, planner="dopd")
    assert attainment > fixed_at(trace, gpu_hours) + MARGIN


def test_a_planner_that_never_scales_in_does_not_pass_for_one_that_does() -> None:
    """The comparison can fail: pools that only grow cost what the largest fixed pools cost, for the same attainment."""
    trace = drifting(1)
    attainment, gpu_hours = served(trace, 1, 1, planner={"name": "dopd", "hold_s": 1e6})
    assert attainment < fixed_at(trace, gpu_hours) + MARGIN
