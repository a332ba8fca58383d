"""All parts together in the simulator: overload, sessions, small KV caches, and what the plugin is for."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdplugins.config import find, load, parse
from pdplugins.policies.dynaserve import table
from pdplugins.results import Result
from pdplugins.runtime.explain import Choose, explain
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import Terms, TraceRequest

COLOCATED = {"router": {"name": "least-loaded", "colocated": True}, "batch_scheduler": "dynaserve", "bundle": None}
"""Co-location with steps of the size that the TPOT SLO leaves: the strongest of what is stock here."""


def chats(rate: float, count: int) -> list[TraceRequest]:
    rng, now_s, trace = random.Random(0), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        isl, osl = rng.lognormvariate(6.6, 1.0), rng.lognormvariate(5.0, 0.8)
        trace.append(TraceRequest(now_s, int(min(isl, 8000)) + 1, int(min(osl, 2000)) + 1))
    return trace


def run(trace: list[TraceRequest], **changes: Any) -> Result:
    data = load(find("fusion")).model_dump(mode="json") | changes
    return simulate(parse(data), trace, trace_name="chats", command="test", seed=0)[0]


def faults(result: Result) -> list[str]:
    return [count for count in result.counts if count.startswith("faults")]


def attainment(result: Result) -> float:
    assert result.metrics.slo_attainment is not None
    return result.metrics.slo_attainment


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"composition": False},
        {"oldest_share": 0.0},
        {"scale": True, "interval_s": 5.0},
        {"power_budget_w": 8 * 450.0},
    ],
    ids=str,
)
def test_nothing_is_lost_and_no_part_fails(settings: dict[str, Any]) -> None:
    result = run(chats(10.0, 150), bundle={"name": "fusion", **settings})
    assert (result.requests.failed, faults(result)) == (0, [])


@pytest.mark.parametrize("part", ["router", "flow", "batch_scheduler"])
def test_each_part_works_alone(part: str) -> None:
    rest = {} if part == "router" else {"router": {"name": "least-loaded", "colocated": True}}
    result = run(chats(10.0, 150), bundle=None, **rest, **{part: "fusion"})
    assert (result.requests.failed, faults(result)) == (0, [])


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("profile", "tp", "ttft_s", "tpot_s", "output", "rate"),
    [
        ("h200/qwen3-235b-a22b-fp8", 8, 0.24, 0.016, 4.0, 230),
        ("b200/qwen3-235b-a22b-nvfp4", 4, 0.094, 0.047, 3.2, 1100),
    ],
    ids=["prefill steps as long as the TTFT", "two decode steps as long as the TTFT"],
)
def test_beyond_capacity_a_short_ttft_is_kept_for_most(
    profile: str, tp: int, ttft_s: float, tpot_s: float, output: float, rate: float
) -> None:
    """Where as much may wait on a worker as takes the TTFT, all requests are late as soon as any is."""
    pools = {role: {"replicas": 3, "tp": tp} for role in ("prefill", "decode")}
    rng, trace = random.Random(0), []
    for number in range(13 * rate):
        isl, osl = rng.lognormvariate(5.0, 0.8), rng.lognormvariate(output, 0.8)
        trace.append(TraceRequest(number / rate, int(min(isl, 8000)) + 8, int(min(osl, 1000)) + 2))
    deployment = {"profile": profile, "gpu_budget": 6 * tp, **pools}
    result = run(trace, slo={"ttft_s": ttft_s, "tpot_s": tpot_s}, deployment=deployment)
    assert attainment(result) > 0.5


def test_prompts_that_a_worker_has_in_time_are_in_time_on_an_idle_one() -> None:
    pools = {role: {"replicas": 2, "tp": 16} for role in ("prefill", "decode")}
    deployment = {"profile": "h200/deepseek-r1", "gpu_budget": 64, **pools}
    trace = [TraceRequest(float(number), 4500, 100) for number in range(60)]
    assert attainment(run(trace, slo={"ttft_s": 1.1, "tpot_s": 0.1}, deployment=deployment)) > 0.8


def test_a_small_kv_cache_stops_nobody() -> None:
    result = run(chats(10.0, 150), simulation={"flip": "label", "overlap": True, "kv_tokens": 12_000})
    assert (result.requests.failed, faults(result)) == (0, [])
    assert result.speed.duration_s < 300, "a timeout of 300 s must not be what frees them"


@pytest.mark.moderate
@pytest.mark.parametrize("rate", [12.0, 30.0])
def test_a_prefix_that_all_prompts_share_costs_prefill_and_kv_cache_once(rate: float) -> None:
    """Counted for each, most workers would prefill what is cached, or places to decode would seem to be short."""
    prefix, rng, now_s, trace = tuple(range(16)), random.Random(1), 0.0, []
    for number in range(int(40 * rate)):
        now_s += rng.expovariate(rate)
        own = 20 + int(rng.expovariate(1 / 80))
        trace.append(TraceRequest(now_s, 16 * 512 + own, 20 + int(rng.expovariate(1 / 80)), blocks=(*prefix, -number)))
    assert attainment(run(trace)) > 0.98


@pytest.mark.moderate
def test_prompts_that_no_kv_cache_holds_disturb_nobody() -> None:
    """They are refused at once. As a part of the traffic they would have all workers prefill, and answers wait."""
    chat = chats(8.0, 800)
    huge = [TraceRequest(10.0 + 2 * number, 300_000, 100) for number in range(45)]
    result = run(sorted([*chat, *huge], key=lambda one: one.arrival_s))
    assert result.requests.failed == len(huge)
    assert attainment(result) * result.requests.total > 0.99 * len(chat)


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("part", "method"), [("router", "on_arrival"), ("batching", "next_batch")], ids=["router", "batches"]
)
def test_a_part_that_raises_falls_back_to_colocation_with_steps_of_the_slo(
    monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    """Every request is then served as the strongest stock configuration serves it."""
    where = f"pdplugins.policies.fusion.{part}.Fusion{'Router' if part == 'router' else 'BatchScheduler'}.{method}"

    def fails(*_: object) -> None:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(where, fails)
    trace = chats(10.0, 150)
    result = run(trace, bundle={"name": "fusion", "composition": False})
    assert result.requests.failed == 0
    assert len(faults(result)) == 1
    assert attainment(result) >= attainment(run(trace, **COLOCATED)) - 0.02


@pytest.mark.moderate
def test_explain_says_of_one_request_why_here_why_now_and_why_late(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    trace = [*(TraceRequest(0.0, 3000, 50) for _ in range(40)), TraceRequest(0.0, 30_000, 50)]
    data = load(find("fusion")).model_dump(mode="json") | {"decision_log": {"sample": 1}}
    simulate(parse(data), trace, trace_name="chats", command="test", seed=0, decision_log=log)
    lines = "\n".join(explain(log, Choose(request="40")))
    assert re.search(r"flow  go 40  late: its deadline passed", lines), lines
    assert re.search(r"router.*first token in", lines), lines
    assert "batch scheduler  prefill 40 " in lines


@pytest.mark.moderate
def test_answers_far_longer_than_the_prior_do_not_overfill_the_pool() -> None:
    """None has ended after a minute, but each has many more tokens by then than the prior says."""
    rng, now_s, trace = random.Random(0), 0.0, []
    while (now_s := now_s + rng.expovariate(3.0)) < 120.0:
        trace.append(TraceRequest(now_s, 500, 4000))
    assert attainment(run(trace)) > 0.98


@pytest.mark.moderate
def test_overload_does_not_take_the_goodput_down() -> None:
    """Beyond capacity most requests are still in time; with first come first served nearly none would be."""
    trace = chats(40.0, 1500)
    ours, theirs = run(trace), run(trace, **COLOCATED)
    assert attainment(ours) > 0.5
    assert attainment(theirs) < 0.2


@pytest.mark.moderate
def test_below_capacity_it_is_no_worse_than_colocation() -> None:
    trace = chats(12.0, 600)
    ours, theirs = run(trace), run(trace, **COLOCATED)
    assert attainment(ours) >= attainment(theirs) - 0.005


@pytest.mark.moderate
def test_refusing_keeps_those_in_time_that_are_let_in() -> None:
    trace = chats(40.0, 1500)
    refused = run(trace, bundle={"name": "fusion", "overload": "refuse"})
    assert refused.requests.failed > 100
    assert refused.metrics.ttft_s.p90 is not None
    assert refused.metrics.ttft_s.p90 < 3.0
    assert faults(refused) == []


@pytest.mark.moderate
def test_a_quiet_pool_refuses_nothing() -> None:
    """A prompt that comes alone is served although it takes most of its TTFT, also after overload."""
    one = {"replicas": 1, "tp": 2}
    small = {"profile": "h100/llama-3.1-70b-fp8", "gpu_budget": 4, "prefill": one, "decode": one}
    config = {"deployment": small, "bundle": {"name": "fusion", "overload": "refuse"}}
    burst = chats(20.0, 800)
    quiet = [TraceRequest(burst[-1].arrival_s + 60.0 + 8.0 * number, 12_000, 40) for number in range(30)]
    before, after = run(burst, **config), run(burst + quiet, **config)
    assert before.requests.failed > 50
    assert after.requests.failed == before.requests.failed


@pytest.mark.moderate
def test_the_planner_gives_back_what_a_quiet_hour_does_not_need() -> None:
    trace = chats(2.0, 600)
    scaled = run(trace, bundle={"name": "fusion", "scale": True, "hold_s": 30.0})
    fixed = run(trace)
    assert attainment(scaled) > 0.95
    assert scaled.metrics.gpu_hours < 0.8 * fixed.metrics.gpu_hours


def test_a_tpot_that_no_worker_keeps_stops_nobody() -> None:
    """The shortest step takes 25 ms. One decode at a time on each worker would be all that a TPOT of 20 ms leaves."""
    result = run(chats(8.0, 300), slo={"ttft_s": 2.0, "tpot_s": 0.02})
    assert result.metrics.ttft_s.p99 is not None
    assert result.metrics.ttft_s.p99 < 2.0


def tpots(trace: list[TraceRequest], **changes: Any) -> dict[str, float]:
    """Return the TPOT of each request by its place in the trace, s."""
    data = load(find("fusion")).model_dump(mode="json") | changes
    outcome = simulate(parse(data), trace, trace_name="chats", command="test", seed=0)[1]
    return {record.id: record.tpot_s for record in outcome.records if record.tpot_s is not None}


@pytest.mark.parametrize("changes", [{}, COLOCATED], ids=["fusion", "dynaserve"])
def test_a_request_with_a_strict_tpot_of_its_own_is_kept_in_it_while_others_prefill(changes: dict[str, Any]) -> None:
    """Every tenth asks for 35 ms where the deployment promises 80. Unasked, many are served slower."""
    usual = [replace(request, osl_tokens=max(request.osl_tokens, 50)) for request in chats(20.0, 300)]
    trace = [replace(one, terms=Terms(tpot_s=0.035)) if index % 10 == 0 else one for index, one in enumerate(usual)]
    before, after = tpots(usual, **changes), tpots(trace, **changes)
    strict = [str(index) for index in range(0, len(trace), 10)]
    assert sum(before[name] > 0.035 for name in strict) > len(strict) / 3
    assert [name for name in strict if after[name] > 0.035] == []
    assert len(after) == len(trace), "and the others are served too"


@pytest.mark.parametrize("tpot_s", [0.03, 0.045, 1e-6])
def test_a_few_requests_with_a_strict_tpot_leave_the_others_in_time(tpot_s: float) -> None:
    """Every tenth asks for it. Spread over all workers they leave so little prefill that up to half of all are late."""
    trace = [
        replace(one, terms=Terms(tpot_s=tpot_s)) if index % 10 == 0 else one
        for index, one in enumerate(chats(12.0, 600))
    ]
    records = simulate(
        parse(load(find("fusion")).model_dump(mode="json")), trace, trace_name="chats", command="test", seed=0
    )[1].records
    slo = load(find("fusion")).slo
    missed = {False: 0, True: 0}
    for record in records:
        strict = int(record.id) % 10 == 0
        within_s = tpot_s if strict else slo.tpot_s
        missed[strict] += record.ttft_s is None or record.ttft_s > slo.ttft_s or (record.tpot_s or 0.0) > within_s
    assert missed[False] < 0.02 * len(trace)
    assert missed[True] < 0.02 * len(trace) or tpot_s < 0.01, "nobody can keep that one"


def test_steps_that_are_two_in_one_are_sized_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang without `--enable-mixed-chunk`. A policy that takes them for one makes them too long."""
    usual = table.grid_steps
    deployment = {"mixed_steps": False, "prefill": {"replicas": 0, "tp": 2}, "decode": {"replicas": 4, "tp": 2}}
    label = {"flip": "label", "overlap": True}
    config = parse({"deployment": deployment, "slo": {"tpot_s": 0.04}, "bundle": "fusion", "simulation": label})
    trace = [TraceRequest(index / 8, 1500, 150) for index in range(480)]

    def attained() -> float:
        return simulate(config, trace, trace_name="steady", command="test")[0].metrics.slo_attainment or 0.0

    assert attained() > 0.99
    monkeypatch.setattr(table, "grid_steps", lambda perf, tp, *, mixes: usual(perf, tp, mixes=True))
    assert attained() < 0.95
