"""Table 2 of the paper: its planner's best deployments, found again by the program of Eq. 5 over the profiles' times.

The paper does not state the request rates of its table, and Eq. 5 minimises P95 latency in seconds. So the program gets
that objective at a light load, where the latency of a deployment decides and not how much it can serve.

Not reproduced: the third rank of the 8-GPU cases, P <TP=2, DP=1>, D <TP=2, DP=3>, because its one prefill worker takes
nearly twice as long for a prompt as one of TP 4, for which there are GPUs; and cases where the paper prefers decode
workers of TP 4 to one of TP 8, which is faster in the profiles of H20.
"""

from __future__ import annotations

import pytest

from pdplugins.config import parse
from pdplugins.policies.ampd.planning import DeploymentPlan, best_plans
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.run.setup import engine_settings
from pdplugins.studies.deployment import coefficients
from pdplugins.studies.deployment.coefficients import Curve, Profiler, options
from pdplugins.types import Role, TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def all_prefills_are_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a light load no decode worker takes prefills; half of the simulations would be of those that do."""
    monkeypatch.setattr(coefficients, "LOCALS", (0,))


LOAD = 0.2
"""Of the sessions/s at which the prefills alone would fill all GPUs."""
TABLE_1 = {"HotpotQA": (3, 1569.8, 80.03), "DuReader": (3, 3081.23, 150.10)}
"""Rounds, prefill tokens and decode tokens of a session."""


def sessions(trace: str) -> list[TraceRequest]:
    rounds, prefill, decode = TABLE_1[trace]
    prompt = {"kind": "lognormal", "sigma": 0.4, "median": prefill / rounds / 1.083, "low": 1}
    answer = {"kind": "lognormal", "sigma": 0.4, "median": decode / rounds / 1.083, "low": 1}
    gap_s = {"kind": "exponential", "mean": 0.3}
    given = {
        "requests": 200, "arrivals": {"kind": "poisson", "rate": 1}, "isl_tokens": prompt, "osl_tokens": answer,
        "sessions": {"rounds": rounds, "gap_s": gap_s, "new_tokens": prompt, "osl_tokens": answer},
    }  # fmt: skip
    return list(synthetic(SyntheticSettings.model_validate(given)))


def planned(model: str, trace: str, gpus: int) -> tuple[list[str], list[Curve]]:
    """The best plans, as the paper writes them, and the curves that they follow from."""
    pool = {"replicas": 1, "tp": 4}
    where = {"profile": f"h20/{model}", "gpu_budget": gpus, "prefill": pool, "decode": pool}
    config = parse({"deployment": where, "simulation": {"order": "prefill_first"}})
    deployment = build_deployment(config)
    profiler = Profiler(deployment, sessions(trace), engine_settings(config), "latency")
    curves = [curve for curve in profiler.curves() if curve is not None]
    rounds, prefill, _ = TABLE_1[trace]
    most = gpus / 4 / (rounds * deployment.perf.prefill_s(prefill / rounds, 4))
    return [shown(plan) for plan in best_plans(options(curves, LOAD * most, gpus), gpus, 3)], curves


def shown(plan: DeploymentPlan) -> str:
    return ", ".join(f"{role.value[0].upper()} {' + '.join(map(str, plan.of(role)))}" for role in Role)


def test_the_first_two_of_llama_on_hotpotqa_in_order() -> None:
    plans, curves = planned("llama-3.1-70b", "HotpotQA", 8)
    assert plans[:2] == ["P <TP=4, DP=1>, D <TP=4, DP=1>", "P <TP=2, DP=2>, D <TP=4, DP=1>"]
    unloaded = {curve.degree: curve.p95[0][0] for curve in curves if curve.role is Role.PREFILL}
    assert unloaded[2] > 1.7 * unloaded[4], "which keeps the paper's third plan out"


def test_the_first_of_mixtral_on_hotpotqa() -> None:
    assert planned("mixtral-8x7b", "HotpotQA", 8)[0][0] == "P <TP=4, DP=1>, D <TP=4, DP=1>"


def test_where_it_differs_one_decode_worker_of_eight_gpus_is_faster_in_the_profile() -> None:
    """The paper has P <TP=4, DP=2>, D <TP=4, DP=2> first."""
    plans, curves = planned("qwen3-32b", "DuReader", 16)
    assert "P <TP=4, DP=2>, D <TP=8, DP=1>" in plans
    unloaded = {curve.degree: curve.p95[0][0] for curve in curves if curve.role is Role.DECODE}
    assert unloaded[8] < 0.9 * unloaded[4]
