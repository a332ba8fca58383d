"""The deployment planner: coefficients that behave, plans within the GPUs, and a config that runs."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplugins.config import load, parse
from pdplugins.policies.ampd.planning import SHARES, DeploymentPlan, Group
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.records import Record
from pdplugins.studies.deployment import plan as planning
from pdplugins.studies.deployment import report
from pdplugins.studies.deployment.coefficients import LOADS, POOLS, Curve, Profiler, options, phase_p95, stretched
from pdplugins.studies.deployment.plan import plan_deployment, with_plan
from pdplugins.types import Role, Slo, TraceRequest
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic
from tests.command_line import invoke

pytestmark = pytest.mark.slow

CONFIG = {
    "deployment": {"profile": "h100/llama-3.1-70b-fp8", "gpu_budget": 8},
    "router": "ampd",
    "batch_scheduler": "ampd",
    "simulation": {"order": "prefill_first"},
}


def sessions(rate: float = 2.0, count: int = 120) -> list[TraceRequest]:
    return list(
        synthetic(
            SyntheticSettings.model_validate(
                {
                    "requests": count,
                    "arrivals": {"kind": "poisson", "rate": rate},
                    "isl_tokens": 600,
                    "osl_tokens": 30,
                    "sessions": {"rounds": 3, "gap_s": 0.5, "new_tokens": 400},
                }
            )
        )
    )


@pytest.fixture(scope="module")
def curves() -> list[Curve]:
    deployment = build_deployment(parse(CONFIG))
    profiler = Profiler(deployment, sessions(count=60), EngineSettings(order="prefill_first"), "slo")
    steps = list(profiler.curves())
    assert steps.count(None) == profiler.points()
    return [curve for curve in steps if curve is not None]


def test_a_curve_rises_with_load_and_a_larger_degree_is_faster(curves: list[Curve]) -> None:
    for curve in curves:
        for row in curve.p95:
            assert list(row) == sorted(row)
        assert curve.at(1, 0.5 * curve.capacity) <= curve.at(1, 1.5 * curve.capacity)
    alone = {c.degree: c.p95[0][0] for c in curves if c.role is Role.PREFILL}
    assert alone[1] > alone[2] > alone[4]


def test_unloaded_prefill_takes_what_the_profile_says(curves: list[Curve]) -> None:
    """Lightly loaded, the P95 is about one prefill of 600 tokens; beyond what it can serve, it is far above."""
    perf = build_deployment(parse(CONFIG)).perf
    curve = next(c for c in curves if c.role is Role.PREFILL and c.degree == 2)
    alone = perf.prefill_s(600, 2) / parse(CONFIG).slo.ttft_s
    assert alone <= curve.p95[-1][0] < 2.5 * alone
    assert curve.p95[0][-1] > 10 * alone


def test_local_prefills_cost_a_decode_worker_its_pace(curves: list[Curve]) -> None:
    decode = {c.local: c for c in curves if c.role is Role.DECODE and c.degree == 2}
    rate = 0.5 * decode[4].capacity
    assert decode[4].at(1, rate) > decode[2].at(1, rate) > decode[0].at(1, rate)


def test_twice_the_replicas_serve_twice_the_sessions_about_as_fast(curves: list[Curve]) -> None:
    for curve in curves:
        assert curve.at(16, 8 * curve.capacity) == pytest.approx(curve.at(8, 4 * curve.capacity))


def test_options_are_all_groups_at_all_shares(curves: list[Curve]) -> None:
    found = options(curves, 2.0, 8)
    assert len(found) == sum(8 // curve.degree for curve in curves) * SHARES
    assert all(option.local <= option.share // 2 for option in found)


def test_stretching_keeps_sessions_whole_and_sets_the_rate() -> None:
    few = stretched(sessions(), 90, 5.0)
    assert sum(1 + len(one.rounds) for one in few) == 90
    assert (len(few) - 1) / few[-1].arrival_s == pytest.approx(5.0, rel=0.05)
    at_once = [TraceRequest(0.0, 10, 5) for _ in range(4)]
    assert [one.arrival_s for one in stretched(at_once, 10, 2.0)] == [0.0, 0.5, 1.0, 1.5]


def test_a_phase_with_a_failure_serves_nobody() -> None:
    good = Record("0", 0.0, 10, 5, 0.1, 0.01, 0.01, 1.0, "p0", "d0")
    slo = Slo(1.0, 0.1)
    assert phase_p95([good], Role.PREFILL, slo, "slo") == pytest.approx(0.1)
    assert phase_p95([good], Role.DECODE, slo, "latency") == pytest.approx(0.04)
    assert phase_p95([good._replace(decode_worker="p0")], Role.DECODE, slo, "slo") == pytest.approx(0.1)
    assert phase_p95([good, good._replace(error="no room")], Role.DECODE, slo, "slo") == float("inf")


def test_a_plan_becomes_a_config_with_mixed_degrees_as_extra_workers() -> None:
    groups = Group(Role.PREFILL, 4, 1), Group(Role.PREFILL, 2, 2), Group(Role.DECODE, 2, 4)
    config = with_plan(parse(CONFIG), DeploymentPlan(groups, 0.5), 16)
    assert (config.deployment.prefill.tp, config.deployment.prefill.replicas) == (4, 1)
    assert [(more.role, more.tp, more.count) for more in config.simulation.extra] == [(Role.PREFILL, 2, 2)]
    assert config.deployment.gpu_budget == 16


def test_the_same_input_gives_the_same_plans() -> None:
    found = [plan_deployment(parse(CONFIG), sessions(count=15), 8, top=1) for _ in range(2)]
    first, second = ([(str(one.plan), one.attainment) for one in planned.judged] for planned in found)
    assert first == second
    assert all(one.plan.gpus <= 8 for one in found[0].judged)
    assert found[0].judged[0].attainment == max(one.attainment for one in found[0].judged)


def test_the_coefficients_are_of_the_engine_that_the_config_asks_for() -> None:
    """Prompts that are not cut into chunks wait for a step with enough tokens left, which costs TTFT under load."""

    def p95(whole: bool) -> list[object]:
        simulation = {"order": "prefill_first", "step_tokens": 800, "whole_prompts": whole}
        planned = plan_deployment(parse(CONFIG | {"simulation": simulation}), sessions(count=15), 8, top=1)
        return [curve.p95 for curve in planned.curves if curve.role is Role.PREFILL]

    assert p95(whole=True) != p95(whole=False)


def test_the_command_writes_plans_a_page_and_a_config_that_loads(tmp_path: Path) -> None:
    workload = tmp_path / "work.yaml"
    text = {"requests": 40, "arrivals": {"kind": "poisson", "rate": 2}, "isl_tokens": 600, "osl_tokens": 30}
    workload.write_text(yaml.safe_dump(text))
    names = {
        option: tmp_path / file for option, file in (("json", "p.json"), ("html", "p.html"), ("write-config", "p.yaml"))
    }
    files = [part for option, file in names.items() for part in (f"--{option}", str(file))]
    done = invoke("plan", "ampd", "--trace", workload, "--gpus", "8", "--top", "1", *files)
    assert done.exit_code == 0, done.output
    plans = json.loads(names["json"].read_text())
    assert plans["kind"] == "simulated"
    assert plans["plans"][0]["plan"] in done.output
    assert load(names["write-config"]).router is not None
    page = unescape(names["html"].read_text())
    assert f"<h1>{plans['plans'][0]['plan']} attains most" in page
    assert page.index("SLO attainment of the plans") < page.index("TTFT P99, s") < page.index("P95 / SLO, pool of 4")
    assert len(page) < 200_000


def test_a_p95_in_seconds_is_not_told_as_a_share_of_its_slo() -> None:
    planned = plan_deployment(parse(CONFIG), sessions(count=15), 8, top=1, objective="latency")
    page = unescape(report.page(planned, 1, parse(CONFIG), {}))
    assert "P95, s, pool of 4" in page
    assert "P95 / SLO" not in page


def test_loads_and_pools_ascend() -> None:
    assert list(LOADS) == sorted(LOADS)
    assert POOLS[0] == 1


def test_ctrl_c_chooses_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was simulated in part would look better than the others: its early requests are easy ones."""
    simulate = planning.simulate

    def interrupted(*args: Any, **named: Any) -> Any:
        result, outcome = simulate(*args, **named)
        return result.model_copy(update={"interrupted": True}), outcome

    monkeypatch.setattr(planning, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plan_deployment(parse(CONFIG), sessions(count=40), 4, top=1)
