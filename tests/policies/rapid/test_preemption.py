"""RAPID where a small KV cache preempts requests: a prompt that is computed again makes one decode step long."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from pdplugins.config import parse
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic

CONFIG = {
    "slo": {"ttft_s": 2.0, "tpot_s": 0.08},
    "deployment": {
        "profile": "h100/llama-3.1-70b-fp8", "gpu_budget": 8,
        "prefill": {"replicas": 2, "tp": 2}, "decode": {"replicas": 2, "tp": 2},
    },
    "router": "least-loaded",
    "simulation": {"kv_tokens": 60_000},
}  # fmt: skip
LOAD = {
    "requests": 800,
    "arrivals": {"kind": "poisson", "rate": 2.8},
    "isl_tokens": {"kind": "lognormal", "median": 2650, "sigma": 0.5, "high": 14_000},
    "osl_tokens": {"kind": "lognormal", "median": 350, "sigma": 0.5, "high": 2000},
}


def attainment(seed: int, move: str) -> float:
    power: dict[str, Any] = {"name": "rapid", "move": move, "max_w": 700, "max_decode_w": 600}
    trace = synthetic(SyntheticSettings.model_validate({**LOAD, "seed": seed}))
    result, _ = simulate(parse({**CONFIG, "power": power}, "small cache"), trace, trace_name="small cache", command="")
    return result.metrics.slo_attainment or 0.0


def test_one_long_step_moves_fewer_gpus_than_it_did() -> None:
    """With the mean of the token intervals 53 % were in time. With nothing moving it is 74 %: some moves stay wrong."""
    assert fmean(attainment(seed, "both") for seed in range(8)) > 0.58
