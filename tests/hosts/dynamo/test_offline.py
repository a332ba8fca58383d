"""``pdplugins replay`` and door (d): Dynamo's real offline replay with fixed pools, stock planners and ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pdplugins import cli
from pdplugins.config import Choice, Config, DeploymentConfig
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.mocker import Engines, bind, engine_args, quiet
from pdplugins.hosts.dynamo.offline.commands import configured
from pdplugins.hosts.dynamo.offline.run import Plan, replay, resolve, with_pools
from pdplugins.hosts.dynamo.offline.scaling import OfflineScaling, Watched
from pdplugins.policies.dopd.planner import DopdPlanner
from pdplugins.results import Result
from pdplugins.runtime import decision_reader
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import SafePlanner
from pdplugins.testing.scripted import EagerPlanner
from pdplugins.types import PlannerView, Role, ScalePlan, TraceRequest
from pdplugins.workloads.arrivals import Mmpp
from pdplugins.workloads.jsonl import write_mooncake
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic
from pdplugins.workloads.transform import clip

quiet()


@pytest.fixture(scope="module")
def trace() -> list[TraceRequest]:
    """Three minutes with bursts that one prefill worker cannot serve."""
    return list(synthetic(SyntheticSettings(seed=3, duration_s=180, arrivals=Mmpp(burst_rate=16))))


def run(
    planner: str,
    trace: list[TraceRequest],
    *,
    config: Config | None = None,
    settings: dict[str, Any] | None = None,
    log: Path | None = None,
) -> Result:
    plan = Plan(planner, config or configured(None), settings or {}, decision_log=log)
    return replay(plan, trace, trace_name="synthetic", command="test")


class Script:
    """A planner that follows a script of (from this time on, prefill, decode) and keeps what it saw."""

    interval_s = 5.0

    def __init__(self, *steps: tuple[float, int, int]) -> None:
        self.steps = steps
        self.views: list[PlannerView] = []

    def plan(self, view: PlannerView) -> ScalePlan:
        self.views.append(view)
        _, prefill, decode = [step for step in self.steps if step[0] <= view.now_s][-1]
        return ScalePlan(prefill, decode, f"script at {view.now_s:.0f} s")


@pytest.fixture
def scripted(trace: list[TraceRequest], tmp_path: Path) -> Callable[..., Watched]:
    """Run the trace with a scripted planner behind door (d)."""

    def go(script: Script) -> Watched:
        config = configured(None)
        deployment = build_deployment(config)
        safe = SafePlanner(script, deployment, initial=ScalePlan(1, 1, "start"))
        watched = Watched(OfflineScaling(safe))
        write_mooncake(trace, tmp_path / "t.jsonl")
        bind(deployment, Engines(), tmp_path)(tmp_path / "t.jsonl", watched, 1, 1, tmp_path / "rows.jsonl")
        return watched

    return go


def test_static_pools_may_come_from_the_options() -> None:
    found = resolve("static", configured(None, {("deployment", "prefill", "replicas"): 3}))
    assert (found.deployment.prefill.replicas, found.deployment.decode.replicas, found.planner) == (3, 1, None)


@pytest.mark.dynamo
def test_a_replay_that_does_not_end_is_ended(trace: list[TraceRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.hosts.dynamo.offline.run.MOST_AFTER_S", -10.0)
    for planner in ("dopd", "static:1P1D"):
        plan = Plan(planner, configured(None))
        with pytest.raises(HostError, match="has lost one; run it again"):
            replay(plan, trace, trace_name="t", command="")


@pytest.mark.dynamo
def test_a_replay_tells_how_often_its_planner_failed(
    trace: list[TraceRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run("dopd", trace[:50]).counts

    def fails(self: DopdPlanner, view: PlannerView) -> ScalePlan:
        raise RuntimeError

    monkeypatch.setattr(DopdPlanner, "plan", fails)
    assert run("dopd", trace[:50]).counts["faults.planner"] > 0


@pytest.mark.dynamo
def test_targets_are_respected_after_the_start_up_time(scripted: Callable[..., Watched]) -> None:
    script = Script((0, 1, 1), (20, 4, 2), (100, 2, 1))
    watched = scripted(script)
    assert [(c.at_s, c.prefill, c.decode) for c in watched.changes] == [(20, 4, 2), (100, 2, 1)]
    assert watched.changes[0].reason == "script at 20 s"
    at = {view.now_s: view for view in script.views}
    assert (at[25].prefill.ready, at[25].prefill.starting, at[25].decode.starting) == (1, 3, 1)
    assert (at[55].prefill.ready, at[55].prefill.starting, at[55].decode.ready) == (4, 0, 2)
    assert (at[105].prefill.ready, at[105].decode.ready) == (2, 1)


@pytest.mark.dynamo
def test_the_view_counts_every_arrival_once(scripted: Callable[..., Watched], trace: list[TraceRequest]) -> None:
    script = Script((0, 3, 1))
    scripted(script)
    seen = [view.traffic for view in script.views]
    assert all(traffic is not None and traffic.window_s == 5.0 for traffic in seen)
    until = script.views[-1].now_s
    assert sum(t.requests for t in seen if t) == sum(r.arrival_s <= until for r in trace)
    felt = [t for t in seen if t and t.ttft_s is not None]
    assert felt
    assert all(t.isl_tokens and t.osl_tokens for t in felt)
    assert any(view.prefill.queued_tokens > 0 for view in script.views)
    assert any(view.decode.running_requests > 0 for view in script.views)


@pytest.mark.dynamo
def test_dopd_scales_both_ways_and_beats_the_pools_it_starts_from(trace: list[TraceRequest]) -> None:
    start, scaled = run("static:1P1D", trace), run("dopd", trace, settings={"hold_s": 30})
    prefill = [1, *(change.prefill for change in scaled.scaling)]
    assert any(b > a for a, b in pairwise(prefill))
    assert any(b < a for a, b in pairwise(prefill))
    assert all(change.reason for change in scaled.scaling)
    assert (scaled.metrics.slo_attainment or 0) > (start.metrics.slo_attainment or 0)
    assert max(c.prefill + 2 * c.decode for c in scaled.scaling) <= 64


@pytest.mark.dynamo
def test_the_same_trace_gives_the_same_decisions(trace: list[TraceRequest], tmp_path: Path) -> None:
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    results = [run("dopd", trace, log=log) for log in logs]
    first, second = ([(e.seen, e.answer) for e in decision_reader.read(log)[0].entries] for log in logs)
    assert len(first) > 30
    assert first == second
    # Dynamo adds up its means in an order that may differ from run to run.
    rounded = [
        json.loads(result.metrics.model_dump_json(), parse_float=lambda text: f"{float(text):.9g}")
        for result in results
    ]
    assert rounded[0] == rounded[1]
    assert results[0].scaling == results[1].scaling


@pytest.mark.dynamo
def test_the_gpu_budget_holds(trace: list[TraceRequest]) -> None:
    config = configured(None, {("deployment", "gpu_budget"): 5})
    result = run("dopd", trace, config=config)
    assert result.scaling
    assert max(c.prefill + 2 * c.decode for c in result.scaling) <= 5


@pytest.mark.dynamo
@pytest.mark.parametrize(
    "planner",
    [
        "dyn-load",
        "dyn-load:latency",
        "dyn-load:load",
        "dyn-load:sla",
        "dyn-sla",
        pytest.param("dyn-sla:arima", marks=pytest.mark.long),
        "dyn-sla:kalman",
        pytest.param("dyn-sla:prophet", marks=pytest.mark.long),
        "dyn-sla+load",
    ],
)
def test_the_real_stock_planner_runs(planner: str, trace: list[TraceRequest]) -> None:
    """Every one serves all requests from 1P1D; whether it scales up in so short a time is its own affair."""
    short = clip(trace, 100)
    result = run(planner, short)
    assert (result.requests.total, result.requests.failed) == (len(short), 0)
    assert result.metrics.gpu_hours >= 3 * result.speed.duration_s / 3600 - 1e-6
    assert all(change.prefill >= 1 and change.decode >= 1 for change in result.scaling)


@pytest.mark.dynamo
def test_a_stock_planner_scales_up_under_load(trace: list[TraceRequest]) -> None:
    result = run("dyn-load:latency", trace)
    assert max(change.prefill for change in result.scaling) > 1


@pytest.mark.dynamo
def test_a_stock_planner_takes_its_documented_settings(trace: list[TraceRequest]) -> None:
    """At a sensitivity of 0 it never scales down, at Dynamo's 80 it does; the result says which it was."""
    target = {"ttft_ms": 200, "load_scaling_down_sensitivity": 0}
    never, shipped = run("dyn-load:sla", trace, settings=target), run("dyn-load:sla", trace, settings={"ttft_ms": 200})

    def shrinks(result: Result) -> bool:
        return any(b.prefill < a.prefill for a, b in pairwise(result.scaling))

    assert (shrinks(never), shrinks(shipped)) == (False, True)
    assert never.config["planner"].items() >= target.items()
    assert shipped.config["planner"]["load_scaling_down_sensitivity"] == 80


@pytest.mark.dynamo
def test_a_worker_holds_what_the_profile_says_unless_told_otherwise(trace: list[TraceRequest]) -> None:
    short = clip(trace, 20)
    said = run("static:2P1D", short).config["run"]
    assert (said["prefill_kv_tokens"], said["decode_kv_tokens"]) == (14_144, 250_112)  # whole blocks of 14,201, 250,130
    told = replace(Plan("static:2P1D", configured(None)), engines=Engines(kv_blocks=8000))
    assert replay(told, short, trace_name="", command="").config["run"]["prefill_kv_tokens"] == 512_000


@pytest.mark.dynamo
def test_our_numbers_are_those_of_the_replays_own_report(trace: list[TraceRequest], tmp_path: Path) -> None:
    from dynamo._core import run_mocker_trace_replay  # noqa: PLC0415 - after quiet()
    from dynamo.mocker import MockEngineArgs  # noqa: PLC0415

    ours = run("static:2P1D", trace)
    deployment = build_deployment(with_pools(configured(None), 2, 1))
    engines = Engines(kv_blocks=None)
    bind(deployment, engines, tmp_path)  # writes the timing table
    write_mooncake(trace, tmp_path / "t.jsonl")
    args = {
        f"{role}_engine_args": MockEngineArgs.from_json(
            json.dumps(engine_args(role, engines, deployment, tmp_path / "timing.npz"))
        )
        for role in Role
    }
    theirs = run_mocker_trace_replay(
        [str(tmp_path / "t.jsonl")],
        num_prefill_workers=2,
        num_decode_workers=1,
        sla_ttft_ms=2000.0,
        sla_itl_ms=80.0,
        **args,
    )
    metrics = ours.metrics
    assert metrics.slo_attainment == theirs["goodput_completed_requests"] / len(trace)
    assert metrics.goodput_tokens_per_s == pytest.approx(theirs["goodput_output_throughput_tok_s"])
    assert metrics.ttft_s.mean == pytest.approx(theirs["mean_ttft_ms"] / 1e3)
    assert metrics.tpot_s.mean == pytest.approx(theirs["mean_tpot_ms"] / 1e3)
    assert metrics.tbt_s.p99 == pytest.approx(theirs["p99_itl_ms"] / 1e3)
    assert metrics.gpu_hours == pytest.approx(
        (theirs["prefill_worker_seconds"] + 2 * theirs["decode_worker_seconds"]) / 3600
    )


# --- the command ---------------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pdplugins", "replay", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


@pytest.mark.dynamo
def test_the_command_writes_one_result(monkeypatch, tmp_path: Path, capsys) -> None:
    out, log, html = (tmp_path / name for name in ("out.json", "decisions.jsonl", "out.html"))
    options = ["--clip-s", "60", "--set", "paper_literal=true", "--json", str(out), "--decision-log", str(log)]
    options += ["--html", str(html)]
    assert call(monkeypatch, "--trace", "synthetic", *options) == 0
    result = Result.model_validate_json(out.read_text())
    assert (result.kind, result.seed) == ("simulated", None)
    assert result.command.startswith("pdplugins replay --trace synthetic")
    assert result.config["planner"]["paper_literal"] is True
    assert result.config["deployment"]["gpu_budget"] == DeploymentConfig().gpu_budget == 8
    assert result.versions["ai-dynamo"].startswith("1.4.")
    assert result.speed.requests_per_s
    assert decision_reader.read(log)[0].entries
    page = html.read_text()
    assert f"<h1>dopd: {result.metrics.slo_attainment:.2%} of {result.requests.total} requests inside" in page
    assert (
        page.index("Inside both SLOs") < page.index("requests without a first token") < page.index("Workers that are")
    )
    assert "SLO attainment" in capsys.readouterr().out


@pytest.mark.dynamo
@pytest.mark.parametrize(
    ("planner", "says"), [("dopd", True), ("static", False), ("threshold", False), ("dyn-load", False)]
)
def test_the_screen_says_which_policies_did_not_run(monkeypatch, capsys, planner: str, says: bool) -> None:
    """Else nothing says why `pdplugins simulate dopd` attains more on the same trace."""
    assert call(monkeypatch, "--trace", "demo", "--planner", planner, "--router", "kv_router", "--clip-s", "20") == 0
    said = (
        "Dynamo's kv_router placed the requests. The config's router and batch scheduler did not run: "
        "pdplugins simulate dopd runs them too, so its figures differ."
    )
    assert (said in capsys.readouterr().out) is says


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--planner", "dopt"], "choose from dopd"),
        (["--planner", "fusion"], "use pdplugins simulate fusion, or dynamo serve --planner fusion --router fusion"),
        (["--planner", "static:3P"], "write for example 3P1D"),
        (["--planner", "static:0P1D"], "at least one worker"),
        (["--planner", "static:00P1D"], "at least one worker"),
        (["--planner", f"static:{'9' * 5000}P1D"], "at least one worker"),
        (["--planner", "static:\x1b[2J"], "at least one worker"),
        (["--planner", "dyn-load:fast"], "choose from throughput, latency, load, sla"),
        (["--planner", "dyn-sla:magic"], "choose from constant, arima, kalman, prophet"),
        (
            ["--planner", "static:1P1D", "--set", "paper_literal=true"],
            "--set paper_literal: static:1P1D has no settings",
        ),
        (["--planner", "dyn-load", "--set", "hold_s=5"], "--set hold_s: dyn-load has no such setting"),
        (
            ["--planner", "dyn-load:sla", "--set", "ttft_ms=-1"],
            "Dynamo's planner refuses it: ttft_ms must",
        ),
        (["--planner", "static:1P1D", "--decision-log", "x"], "--decision-log"),
        (["--planner", "static:7P1D"], "gpu_budget is 8"),
        (["--planner", "static:7P2D", "--gpus", "10"], "gpu_budget is 10"),
        (["--set", "paper_literal"], "write it as key=value"),
        (["--set", "paper=1"], "unknown key 'paper'; valid keys here are"),
        (["--json", "no/such/folder/out.json"], "there is no folder"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--ttft", "-1"], "ttft_s"),
        (["--clip-s", "0"], "no request to replay"),
        (["--trace", "none.csv"], "Azure/AzurePublicDataset"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_exit_code_2(monkeypatch, capsys, arguments, said) -> None:
    trace = [] if "--trace" in arguments else ["--trace", "synthetic"]
    assert call(monkeypatch, *trace, *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert error.isprintable()


@pytest.mark.dynamo
@pytest.mark.timeout(900)
def test_ctrl_c_stops_a_run_cleanly(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    long = tmp_path / "long.jsonl"
    write_mooncake(synthetic(SyntheticSettings(duration_s=2_000)), long)
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job has none
        "from pdplugins.cli import main; main()"
    )
    options = ["replay", "--planner", "dyn-sla:prophet", "--kv-blocks", "8000", "--trace", str(long)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *options, "--json", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("pdplugins-*/timing.npz")):  # it runs, and a first Ctrl-C waits for a tick
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=300)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, error
    assert error.strip() == "pdplugins: replay interrupted, nothing written"
    assert not out.exists()
    assert not list(tmp_path.glob("pdplugins-*"))


# --- reading snapshots ---------------------------------------------------------------------------------------------


def snapshot(**changes: object) -> dict[str, object]:
    """A snapshot as the replay hands it over, cut to what is read."""
    roles = {
        f"{state}_{role}_{what}": [] if what == "ids" else 0
        for state in ("active", "starting", "draining")
        for role in ("prefill", "decode")
        for what in ("ids", "count")
    }
    traffic = {"duration_s": 5.0, "num_req": 0, "shape_count": 0, "ttft_count": 0, "itl_count": 0}
    means = {"avg_isl": 0.0, "avg_osl": 0.0, "avg_ttft_ms": 0.0, "avg_itl_ms": 0.0}
    return {"now_ms": 5000.0, **roles, "traffic": {**traffic, **means}, **changes}


def fpm(worker: int, **changes: float) -> dict[str, float]:
    names = ("num_prefill_requests", "sum_prefill_tokens", "num_decode_requests", "sum_decode_kv_tokens")
    queues = ("num_queued_prefill", "sum_queued_prefill_tokens", "num_queued_decode", "sum_queued_decode_kv_tokens")
    return {"worker_id": worker, **dict.fromkeys((*names, *queues), 0), **changes}


@pytest.fixture
def door() -> OfflineScaling:
    deployment = build_deployment(configured(None))
    return OfflineScaling(SafePlanner(Script((0, 2, 2)), deployment, initial=ScalePlan(3, 1, "start")))


def test_means_over_no_sample_are_unknown_not_zero(door: OfflineScaling) -> None:
    traffic = door.view(snapshot()).traffic
    assert traffic is not None
    assert traffic.requests == 0
    assert (traffic.isl_tokens, traffic.osl_tokens, traffic.ttft_s, traffic.tpot_s) == (None, None, None, None)


def test_a_worker_that_reports_nothing_new_keeps_its_load_until_it_is_gone(door: OfflineScaling) -> None:
    both = {"active_prefill_ids": [0, 1], "active_prefill_count": 2}
    first = [fpm(0, num_queued_prefill=2, sum_queued_prefill_tokens=900), fpm(1, num_prefill_requests=1)]
    assert door.view(snapshot(**both, prefill_fpm_snapshots=first)).prefill.queued_tokens == 900
    later = door.view(snapshot(**both, prefill_fpm_snapshots=[fpm(1)])).prefill
    assert (later.queued_requests, later.running_requests) == (2, 0)
    gone = door.view(snapshot(active_prefill_ids=[1], active_prefill_count=1)).prefill
    assert [load.worker for load in gone.loads] == ["1"]


def test_requests_that_wait_for_kv_space_count_as_queued_for_decode(door: OfflineScaling) -> None:
    load = fpm(
        0, num_queued_prefill=1, sum_queued_prefill_tokens=10, num_queued_decode=2, sum_queued_decode_kv_tokens=5
    )
    pool = door.view(snapshot(active_decode_ids=[0], active_decode_count=1, decode_fpm_snapshots=[load])).decode
    assert (pool.queued_requests, pool.queued_tokens) == (3, 15)


def test_the_load_is_told_by_phase_and_the_hit_rate_where_there_were_admissions(door: OfflineScaling) -> None:
    load = fpm(0, num_prefill_requests=1, sum_prefill_tokens=7, num_decode_requests=3, sum_decode_kv_tokens=40)
    told = {**snapshot()["traffic"], "avg_kv_hit_rate": 0.5, "hit_rate_count": 2}  # type: ignore[dict-item]
    view = door.view(snapshot(active_decode_ids=[0], active_decode_count=1, decode_fpm_snapshots=[load], traffic=told))
    (seen,) = view.decode.loads
    assert (seen.decode_requests, seen.decode_tokens, seen.prefill_tokens) == (3, 40, 7)
    assert view.traffic is not None
    assert view.traffic.prefix_hit_rate == 0.5
    unknown = door.view(snapshot(traffic={**told, "hit_rate_count": 0})).traffic
    assert unknown is not None
    assert unknown.prefix_hit_rate is None


def test_a_snapshot_that_cannot_be_read_holds_the_last_plan(door: OfflineScaling) -> None:
    broken = {"now_ms": 5000.0}
    assert door.on_tick(broken) == {"target_prefill": 3, "target_decode": 1, "next_tick_ms": 10_000.0}
    assert "hold" in door.reason
    assert door.on_tick(snapshot(now_ms=10_000.0))["target_prefill"] == 2


def test_a_planner_of_the_file_keeps_its_settings() -> None:
    config = configured(None).model_copy(update={"planner": Choice(name="dopd", interval_s=7)})
    assert resolve("dopd", config).planner == Choice(name="dopd", interval_s=7)
    assert resolve("dopd", config, {"interval_s": 9}).planner == Choice(name="dopd", interval_s=9)
    assert resolve("static:2P1D", config).planner is None


def test_an_eager_planner_is_asked_as_soon_as_the_traffic_says_so() -> None:
    """Until then the windows between two looks add up."""
    planner = EagerPlanner(20)
    safe = SafePlanner(planner, build_deployment(configured(None)), initial=ScalePlan(1, 1, "start"))
    door = OfflineScaling(safe)
    assert door.initial_tick_ms() == 500.0
    window: dict[str, Any] = {**snapshot()["traffic"], "duration_s": 0.5}  # type: ignore[dict-item]
    first = {**window, "num_req": 12, "shape_count": 1, "avg_isl": 100.0, "avg_osl": 10.0}
    then = {**window, "num_req": 9, "shape_count": 3, "avg_isl": 300.0, "avg_osl": 50.0}
    look = door.on_tick(snapshot(now_ms=500.0, traffic=first))
    assert look == {"target_prefill": None, "target_decode": None, "next_tick_ms": 1000.0}
    asked = door.on_tick(snapshot(now_ms=1000.0, traffic=then))
    assert asked == {"target_prefill": 2, "target_decode": 2, "next_tick_ms": 6000.0}
    (view,) = planner.views
    assert view.traffic is not None
    assert (view.traffic.window_s, view.traffic.requests) == (1.0, 21.0)
    assert (view.traffic.isl_tokens, view.traffic.osl_tokens) == (250.0, 40.0)
    assert view.traffic.ttft_s is None
    door.on_tick(snapshot(now_ms=6000.0, traffic={**window, "duration_s": 5.0, "num_req": 3}))
    assert planner.views[1].traffic is not None
    assert planner.views[1].traffic.requests == 3.0


def test_an_eager_planner_that_sees_too_little_is_asked_at_its_tick() -> None:
    planner = EagerPlanner(20, look_s=2.0)
    safe = SafePlanner(planner, build_deployment(configured(None)), initial=ScalePlan(1, 1, "start"))
    door = OfflineScaling(safe)
    looks = [door.on_tick(snapshot(now_ms=at))["next_tick_ms"] for at in (2000.0, 4000.0, 5000.0)]
    assert looks == [4000.0, 5000.0, 10_000.0]
    assert len(planner.views) == 1


def test_from_one_worker_of_each_role_dopd_plans_before_its_first_tick(trace: list[TraceRequest]) -> None:
    """From pools that somebody chose it does not, whatever comes."""
    from_one = with_pools(configured(None), 1, 1)
    busy = [replace(request, arrival_s=request.arrival_s / 8) for request in trace]
    assert run("dopd", busy, config=from_one).scaling[0].at_s < 5
    assert run("dopd", busy, config=with_pools(from_one, 2, 1)).scaling[0].at_s >= 5
