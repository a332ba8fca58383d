"""`pdplugins explain --shadow`: what policies that nobody followed would have gained."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest

from pdplugins import config as configs
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError
from pdplugins.runtime import shadows
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Decision
from pdplugins.runtime.estimates import PlacementEstimate, attainment, waits_longer
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.planner import initial_plan
from pdplugins.sim.run.simulate import simulate
from pdplugins.testing import worker
from pdplugins.types import Placement, PlannerView, Pool, Request, Role, ScalePlan, Traffic
from pdplugins.workloads.trace import TraceRequest
from tests.runtime.decision_logs import explained

CONFIG = {
    "deployment": {"profile": "h100/llama-3.1-8b", "gpu_budget": 8, "prefill": {"tp": 1}, "decode": {"tp": 1}},
    "slo": {"ttft_s": 0.5, "tpot_s": 0.03},
    "router": "arrow",
    "decision_log": {"sample": 1},
}
BUSY, IDLE, DECODES = "busy", "idle", "decodes"


def written(path: Path, *decisions: tuple[Kind, Any, dict[str, Any]], shadow: bool = True, **more: Any) -> Path:
    """A log of these decisions: kind, answer and what was seen."""
    config = configs.parse(CONFIG | more)
    journal = build_journal(
        config, build_deployment(config), initial=initial_plan(config), decision_log=path, capped=False, shadow=shadow
    )
    for kind, answer, seen in decisions:
        journal.decided(Decision(kind, answer), seen)
    journal.close()
    return path


def routed(name: str, followed: str, shadow: str, prompt: int = 2000) -> tuple[Kind, Any, dict[str, Any]]:
    """One decision: the first worker of each placement; both decode on the same one."""
    workers = (
        worker(BUSY, Role.PREFILL, queued_requests=4, queued_tokens=16000),
        worker(IDLE, Role.PREFILL),
        worker(DECODES, Role.DECODE, running_requests=8, running_tokens=16000),
    )
    request = Request(name, 0.0, prompt)
    other = Placement(followed, DECODES, prompt)
    return (
        Kind.ROUTER,
        Placement(shadow, DECODES, prompt),
        {
            "request": request,
            "workers": workers,
            "now_s": 1.0,
            "followed": other,
        },
    )


def test_a_router_is_told_by_agreement_and_estimated_times(tmp_path: Path) -> None:
    log = written(tmp_path / "log", routed("a", BUSY, IDLE), routed("b", IDLE, IDLE), routed("c", BUSY, IDLE))
    code, said = explained(str(log), "--shadow")
    assert code == 0
    assert "router: 3 requests in the log; placed the same 33.3%, prefill on the same worker 33.3%" in said
    assert "decode on the same worker 100.0%" in said
    assert "a: busy+decodes → idle+decodes, TTFT -" in said
    rows = {one["request"]: one for one in json.loads(explained(str(log), "--shadow", "--json")[1])[0]["router"]}
    assert rows["a"]["shadow_ttft_s"] < rows["a"]["followed_ttft_s"]
    assert rows["b"]["shadow_ttft_s"] == rows["b"]["followed_ttft_s"]
    assert rows["a"]["shadow_tpot_s"] == rows["a"]["followed_tpot_s"]


def test_the_wait_is_that_of_the_prompts_before_it(tmp_path: Path) -> None:
    """The difference between the two workers is the queue, by the profile."""
    log = written(tmp_path / "log", routed("a", BUSY, IDLE))
    deployment = build_deployment(configs.parse(CONFIG))
    (one,) = shadows.as_data(log)[0]["router"]
    assert one["followed_ttft_s"] - one["shadow_ttft_s"] == pytest.approx(4 * deployment.perf.prefill_s(4000, 1))


def test_the_last_decision_on_a_request_counts_and_open_ones_do_not(tmp_path: Path) -> None:
    kind, placement, seen = routed("a", BUSY, IDLE)
    opened = Placement(placement.first, None, placement.split)
    again = seen | {"placement": opened}
    log = written(tmp_path / "log", (kind, opened, seen), (kind, placement, again), (kind, opened, seen))
    assert [one["shadow"] for one in shadows.as_data(log)[0]["router"]] == [(IDLE, DECODES, 2000)]


def test_cached_prompts_splits_and_local_execution_are_estimated() -> None:
    deployment = build_deployment(configs.parse(CONFIG))
    estimate, perf = PlacementEstimate(deployment), deployment.perf
    workers = {name: {"id": name, "role": "prefill", "load": {}} for name in ("a", "b")}
    request = {"id": "r", "prompt_tokens": 4096}
    local = {"first": "a", "second": "a", "split": 4096}
    pair = local | {"second": "b"}
    split = pair | {"split": 2048}
    assert estimate.ttft_s(local, request, workers) == perf.prefill_s(4096, 1)
    assert estimate.ttft_s(pair, request, workers) == perf.prefill_s(4096, 1) + perf.transfer_s(4096)
    halves = perf.prefill_s(2048, 1) * 2 + perf.transfer_s(2048)
    assert estimate.ttft_s(split, request, workers) == halves
    cached = {"a": workers["a"] | {"cached_blocks": 4}, "b": workers["b"]}
    assert estimate.ttft_s(local, request, cached) == perf.prefill_s(2048, 1)
    bound = request | {"bound_worker": "a", "history_tokens": 4000}
    assert estimate.ttft_s(local, bound, workers) == perf.prefill_s(96, 1)
    full = {"a": workers["a"], "b": workers["b"] | {"load": {"running_requests": 63, "running_tokens": 60000}}}
    assert estimate.tpot_s(pair, request, full) == perf.decode_step_s(64, 64096 / 64, 1)


def planned(
    at_s: float, ready: tuple[int, int], wanted: tuple[int, int], rate: float
) -> tuple[Kind, Any, dict[str, Any]]:
    traffic = Traffic(60.0, rate * 60, 2000.0, 200.0)
    view = PlannerView(at_s, traffic, Pool(ready[0]), Pool(ready[1]))
    return Kind.PLANNER, ScalePlan(*wanted, "because"), {"view": view}


def test_a_planner_is_told_by_worker_hours_and_estimated_attainment(tmp_path: Path) -> None:
    """Two workers are there for an hour; the planner wants four, of which the traffic has need."""
    ticks = [planned(60.0 * tick, (1, 1), (3, 1), 30.0) for tick in range(61)]
    log = written(tmp_path / "log", *ticks, planner="dopd", router=None)
    (run,) = shadows.as_data(log)
    told = run["planner"]
    assert told["hours"] == pytest.approx(1.0)
    assert (told["followed_workers_h"], told["shadow_workers_h"]) == (pytest.approx(2.0), pytest.approx(4.0))
    assert told["agrees"] == 0
    assert told["followed_attainment"] < 0.5
    assert told["shadow_attainment"] > 0.9
    said = explained(str(log), "--shadow")[1]
    assert "planner: 1.00 h; the same pools 0.0% of the time" in said
    assert "points" in said


@pytest.mark.parametrize(
    ("part", "key", "value"), [("prefill", "ready", "x"), ("traffic", "requests", 10**400)], ids=["workers", "traffic"]
)
def test_a_damaged_decision_of_a_planner_is_named_by_its_own_line(
    tmp_path: Path, part: str, key: str, value: object
) -> None:
    log = written(tmp_path / "log", *[planned(60.0 * tick, (1, 1), (3, 1), 30.0) for tick in range(5)], planner="dopd")
    lines = log.read_text().splitlines()
    damaged = json.loads(lines[2])
    damaged["seen"]["view"][part][key] = value
    lines[2] = json.dumps(damaged)
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=r"log:3: not a line of a decision log"):
        shadows.as_data(log)


def test_time_in_which_nobody_looked_is_not_counted(tmp_path: Path) -> None:
    ticks = [planned(60.0 * tick, (1, 1), (1, 1), 1.0) for tick in range(11)]
    log = written(tmp_path / "log", *ticks, planned(1e6, (1, 1), (1, 1), 1.0), planner="dopd", router=None)
    told = shadows.as_data(log)[0]["planner"]
    assert told["hours"] == pytest.approx((10 + shadows.LONGEST_GAP) / 60)
    assert told["agrees"] == 1


def test_attainment_rises_with_workers_and_falls_with_traffic() -> None:
    deployment = build_deployment(configs.parse(CONFIG))

    def kept(rate: float, prefill: int, decode: int) -> float:
        share = attainment(deployment, Traffic(1.0, rate, 2000.0, 200.0), prefill, decode)
        assert share is not None
        return share

    by_workers = [kept(30, count, 2) for count in (1, 2, 3, 4, 6)]
    assert by_workers == sorted(by_workers)
    assert by_workers[-1] > 0.95 > by_workers[0]
    by_rate = [kept(rate, 2, 2) for rate in (1, 10, 20, 40, 80)]
    assert by_rate == sorted(by_rate, reverse=True)
    assert kept(10, 8, 1) > 0.9 > kept(1000, 1000, 1), "decode does not keep up"
    assert attainment(deployment, Traffic(1.0, 5.0), 1, 1) is None


def test_the_wait_is_that_of_erlangs_formula() -> None:
    """M/M/1: rho times the exponential; M/M/2 with one Erlang offered: C = 1/3."""
    assert waits_longer(0.0, 0.5, 1.0, 1) == pytest.approx(0.5)
    assert waits_longer(0.0, 1.0, 1.0, 2) == pytest.approx(1 / 3)
    assert waits_longer(5.0, 3.0, 1.0, 2) == 1.0


def test_a_log_without_such_decisions_says_what_to_do(tmp_path: Path) -> None:
    kind, placement, seen = routed("a", BUSY, IDLE)
    seen.pop("followed")
    log = written(tmp_path / "log", (kind, placement, seen), shadow=False)
    with pytest.raises(ConfigError, match="gateway --shadow"):
        list(shadows.shadowed(log))


@pytest.mark.parametrize("change", [{"prompt_tokens": "x"}, {"id": None, "prompt_tokens": None}])
def test_an_edited_line_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    log = written(tmp_path / "log", routed("a", BUSY, IDLE))
    header, line = log.read_text().splitlines()
    data = json.loads(line)
    data["seen"]["request"] |= change
    log.write_text(f"{header}\n{json.dumps(data)}\n")
    with pytest.raises(ConfigError, match="log:2: not a line of a decision log"):
        list(shadows.shadowed(log))


def test_a_header_without_a_profile_has_that_of_every_config_without(tmp_path: Path) -> None:
    log = written(tmp_path / "log", routed("a", BUSY, IDLE))
    header, line = log.read_text().splitlines()
    data = json.loads(header)
    del data["config"]["deployment"]["profile"]
    log.write_text(f"{json.dumps(data)}\n{line}\n")
    assert "; profile h100/llama-3.1-70b-fp8" in next(shadows.shadowed(log))


@pytest.mark.moderate
def test_pools_come_in_the_order_that_the_simulator_has_them_in() -> None:
    """From idle to far too small. Near saturation the shares differ: half a minute is no steady state."""
    random, data = Random(1), CONFIG | {"router": "least-loaded"}
    cells = []
    for rate in (20, 40):
        times = [0.0]
        while times[-1] < 30:
            times.append(times[-1] + random.expovariate(rate))
        prompts = [min(round(random.lognormvariate(7.5, 0.45)), 8000) for _ in times]
        trace = [TraceRequest(at_s, prompt, 200) for at_s, prompt in zip(times, prompts, strict=True)]
        traffic = Traffic(times[-1], len(times), mean(prompts), 200.0)
        for pools in ((1, 1), (2, 1), (2, 2), (3, 2)):
            roles = dict(zip(("prefill", "decode"), ({"tp": 1, "replicas": count} for count in pools), strict=True))
            config = configs.parse(data | {"deployment": data["deployment"] | roles})  # type: ignore[operator]
            result, _ = simulate(config, trace, trace_name="cell", command="test")
            share = attainment(build_deployment(config), traffic, *pools)
            assert share is not None
            cells.append((result.metrics.slo_attainment, share))
    assert {round(measured) for measured, _ in cells} == {0, 1}, "some cells keep their objectives and some do not"
    for (measured, share), (other, its) in combinations(cells, 2):
        if abs(measured - other) > 0.1:
            assert (measured > other) == (share > its) or share == its == 0


@pytest.mark.parametrize(
    ("key", "value"), [("now_s", "x"), ("answer", {"prefill": "x", "decode": 1, "reason": "", "signals": {}})]
)
def test_an_edited_line_of_a_planner_is_named_in_one_line(tmp_path: Path, key: str, value: Any) -> None:
    log = written(tmp_path / "log", *[planned(60.0 * n, (2, 2), (2, 2), 1.0) for n in range(3)])
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for row in rows[2:]:
        (row["seen"]["view"] if key == "now_s" else row)[key] = value
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="not a line of a decision log"):
        shadows.as_data(log)


def test_a_header_without_a_time_is_named_in_one_line(tmp_path: Path) -> None:
    log = written(tmp_path / "log", *[planned(60.0 * n, (2, 2), (2, 2), 1.0) for n in range(3)])
    header, *rest = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps({k: v for k, v in json.loads(header).items() if k != "at"}), *rest]) + "\n")
    with pytest.raises(ConfigError, match="not a line of a decision log"):
        shadows.as_data(log)
