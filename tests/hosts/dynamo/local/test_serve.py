"""The live stack: it answers, it scales, it survives, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.dynamo.local.serve import PATIENCE_S, Serve
from tests.sockets import beyond_this_machine, listening
from tests.waiting import runs, until

pytestmark = [pytest.mark.dynamo, pytest.mark.timeout(600)]


def chat(url: str, model: str) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    request = urllib.request.Request(  # noqa: S310 - our own frontend
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        return json.load(answer)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own launcher
        return answer.read().decode()


def test_serve_answers_and_sigterm_leaves_nothing(serve: Callable[..., Serve]) -> None:
    """After SIGTERM the launcher ends by itself, and there is no process, no registration and no port."""
    stack = serve("--port", "0", "--metrics-port", "0", "--dashboard", "0")
    ready = stack.ready()
    answer = chat(ready["url"], ready["model"])
    assert answer["usage"]["completion_tokens"] == 5
    stack.wait(lambda: stack.status()["planner"] == "running")
    metrics = page(f"http://127.0.0.1:{ready['metrics_port']}/metrics")
    assert 'pdplugins_local_workers{phase="ready",role="decode"} 1.0' in metrics
    assert "pdplugins_planner_target_replicas" in metrics
    shown = page(ready["dashboard"])
    assert shown.index("<h1>dopd: ") < shown.index("Inside the objectives") < shown.index("prefill-1")
    pids = stack.descendants()
    assert len(pids) == 3  # frontend and two workers; the planner runs in the launcher
    assert len(listening([stack.process.pid, *pids])) >= 6
    assert beyond_this_machine([stack.process.pid, *pids]) == set()

    assert stack.signal(signal.SIGTERM) == 0
    assert not any(map(runs, pids))
    assert not list(stack.temp.iterdir())
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(ready["url"].rpartition(":")[2]))) != 0


def test_interrupt_during_start_up_leaves_nothing(serve: Callable[..., Serve]) -> None:
    """Ctrl-C while workers still start stops everything too."""
    stack = serve("--port", "0")
    pids = stack.wait(lambda: stack.events("starting") and stack.descendants())
    assert stack.signal(signal.SIGINT) == 0
    assert not any(map(runs, pids))
    assert not list(stack.temp.iterdir())


def test_nothing_outlives_a_killed_launcher(serve: Callable[..., Serve]) -> None:
    """SIGKILL of the launcher takes every child with it; the next start sweeps up its folder."""
    stack = serve("--port", "0")
    stack.ready()
    pids = stack.descendants()
    stack.signal(signal.SIGKILL)
    assert until(lambda: not any(map(runs, pids)), PATIENCE_S)


def command_of(pid: int) -> list[str]:
    """The command line of a process; of one that has gone nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def test_a_router_serves_dies_and_serves_again(serve: Callable[..., Serve], tmp_path: Path) -> None:
    """It is in the path of each request, nothing of it listens beyond this machine, and nothing of it stays."""
    decisions = tmp_path / "decisions.jsonl"
    stack = serve("--router", "arrow", "--planner", "static", "--port", "0", "--decision-log", str(decisions))
    ready = stack.ready()

    def routers() -> list[int]:
        return [pid for pid in stack.descendants() if "pdplugins.hosts.dynamo.router" in command_of(pid)]

    def served() -> str:
        return page(f"http://127.0.0.1:{ready['router_metrics_port']}/metrics")

    assert chat(ready["url"], ready["model"])["usage"]["completion_tokens"] == 5
    assert 'pdplugins_dynamo_router_requests_total{outcome="ok"} 1.0' in served()
    (router,) = routers()
    pids = stack.descendants()
    assert len(pids) == 6  # frontend, router, four workers
    assert beyond_this_machine([stack.process.pid, *pids]) == set()

    os.kill(router, signal.SIGKILL)
    stack.wait(lambda: routers() not in ([], [router]))

    refusals: list[int] = []

    def answers() -> bool:
        try:
            return chat(ready["url"], ready["model"])["usage"]["completion_tokens"] == 5
        except urllib.error.HTTPError as error:
            refusals.append(error.code)
            return False

    stack.wait(answers)
    assert set(refusals) <= {404, 503}, "no request is sent to the router that is gone"
    assert 'pdplugins_dynamo_router_requests_total{outcome="ok"} 1.0' in served()
    pids = stack.descendants()
    assert stack.signal(signal.SIGTERM) == 0
    assert not any(map(runs, pids))
    assert not list(stack.temp.iterdir())
    assert decisions.with_suffix(".router.jsonl").stat().st_size > 0


@pytest.mark.slow
def test_planner_and_router_of_one_bundle_serve_a_stack(serve: Callable[..., Serve], tmp_path: Path) -> None:
    """Its flow policy lets requests go on, its router places them, and its planner plans for the pool that they use."""
    decisions = tmp_path / "decisions.jsonl"
    stack = serve("--planner", "fusion", "--router", "fusion", "--port", "0", "--decision-log", str(decisions))
    ready = stack.ready()
    for _ in range(3):
        assert chat(ready["url"], ready["model"])["usage"]["completion_tokens"] == 5
    served = page(f"http://127.0.0.1:{ready['router_metrics_port']}/metrics")
    assert 'pdplugins_dynamo_router_requests_total{outcome="ok"} 3.0' in served
    assert "pdplugins_dynamo_router_wait_seconds_count 3.0" in served
    assert 'faults_total{kind="router_' not in served
    assert 'faults_total{kind="flow_' not in served

    def plans() -> list[dict[str, Any]]:
        return [line for line in map(json.loads, decisions.read_text().splitlines()) if line.get("kind") == "planner"]

    stack.wait(lambda: decisions.exists() and plans())
    assert json.loads(decisions.read_text().splitlines()[0])["planner"] == "fusion"
    assert stack.signal(signal.SIGTERM) == 0


def test_a_failing_start_leaves_nothing(serve: Callable[..., Serve]) -> None:
    """A frontend that cannot start is one line, exit code 2, and no process stays."""
    stack = serve("--port", "0", "--host", "203.0.113.1")
    assert stack.finish() == 2
    error = stack.errors()
    assert error.count("\n") == 1
    assert "203.0.113.1" in error


@pytest.mark.long
def test_replay_scales_both_roles_up_and_down_without_a_failure(
    serve: Callable[..., Serve], quick_config: Callable[..., str], waves: Callable[..., Path], tmp_path: Path
) -> None:
    """A replay of 400 requests sees each role scale up and down while requests run, and none fails."""
    trace, report = waves((2, 4), (15, 25), (2, 20)), tmp_path / "report.json"
    decisions = tmp_path / "decisions.jsonl"
    config = quick_config(gpu_budget=12, hold_s=5)
    stack = serve(
        *("--config", config, "--port", "0", "--trace", str(trace), "--json", str(report)),
        *("--html", str(tmp_path / "report.html")),
        *("--decision-log", str(decisions)),
    )
    assert stack.finish() == 0, stack.errors()

    result = json.loads(report.read_text())
    assert result["kind"] == "measured"
    assert result["requests"]["total"] >= 400
    assert result["requests"]["failed"] == 0
    assert 0 <= result["metrics"]["slo_attainment"] <= 1  # how much of it is up to the machine
    assert 0.02 < result["metrics"]["gpu_hours"] < 12 * result["speed"]["wall_s"] / 3600
    running = [s for s in stack.events("status") if s["pulse"]["in_flight"]]
    for role in ("prefill", "decode"):
        served = [s[role]["ready"] for s in running]
        assert any(later > now for now, later in pairwise(served)), f"{role} never scaled up"
        assert any(later < now for now, later in pairwise(served)), f"{role} never scaled down"
    assert all(s["gpus_held"] <= 12 for s in stack.events("status"))
    assert decisions.stat().st_size > 0
    (verdict,) = stack.events("verdict")
    assert any("In hindsight (simulated)" in line for line in verdict["lines"])
    assert any("on the average; fixed pools of" in line for line in verdict["lines"])
    page = (tmp_path / "report.html").read_text()
    assert page.index("<h1>dopd: ") < page.index("In hindsight") < page.index("Workers that are wanted")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_supervision_goes_on_whatever_happens_to_proxy_logs_and_folder(serve: Callable[..., Serve]) -> None:
    """A proxy that is not there; deleted logs; then a hung worker and a dead one; then a deleted folder."""
    stack = serve("--port", "0", http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")
    ready = stack.ready()
    shutil.rmtree(ready["logs"])
    for role, how in (("decode", signal.SIGSTOP), ("prefill", signal.SIGKILL)):
        ((name, pid),) = stack.workers(role).items()
        os.kill(pid, how)

        def replaced(role: str = role, name: str = name) -> bool:
            return bool(stack.workers(role)) and name not in stack.workers(role)

        stack.wait(replaced)
        assert not runs(pid)
    assert chat(ready["url"], ready["model"])["usage"]["completion_tokens"] == 5
    assert stack.status()["pulse"]["in_flight"] is not None
    pids = stack.descendants()
    folder = Path(ready["logs"]).parent
    folder.rename(folder.with_name("gone"))  # at once, while processes go on writing to it
    assert stack.finish() == 2
    assert not any(map(runs, pids))
    last = stack.errors().splitlines()[-1]
    assert "has been deleted; start again" in last


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_only_its_own_requests_may_fail(
    serve: Callable[..., Serve], quick_config: Callable[..., str], waves: Callable[..., Path], tmp_path: Path
) -> None:
    """SIGKILL of a worker of each role under load: replaced, and no request outside that worker fails."""
    stack = serve("--config", quick_config(gpu_budget=8, hold_s=600), "--port", "0", "--prefill", "2", "--decode", "2")
    ready = stack.ready()
    stack.wait(lambda: len(stack.workers("decode")) == len(stack.workers("prefill")) == 2)
    records = tmp_path / "records.jsonl"
    trace = waves((7, 16), osl_tokens=150)
    client = [sys.executable, "-m", "pdplugins.workloads.client", "--url", ready["url"], "--model", ready["model"]]
    load = subprocess.Popen([*client, "--trace", str(trace), "--out", str(records)])
    try:
        kills_s = []
        for role in ("decode", "prefill"):
            time.sleep(4)
            name, pid = sorted(stack.workers(role).items())[0]
            before = set(stack.workers(role))
            kills_s.append(time.time())
            os.kill(pid, signal.SIGKILL)

            def replaced(role: str = role, gone: str = name, before: set[str] = before) -> bool:
                now = set(stack.workers(role))
                return gone not in now and len(now) >= len(before) and not now <= before

            stack.wait(replaced)
        assert load.wait(PATIENCE_S) == 0
    finally:
        load.kill()
        load.wait()

    rows = [json.loads(line) for line in records.read_text().splitlines()]
    started_s = next(row["started"] for row in rows if "started" in row)
    requests = [row for row in rows if "request" in row]
    assert len(requests) > 80
    for row in requests:
        if row["error"]:
            inside = [k for k in kills_s if started_s + row["arrival_s"] <= k <= started_s + row["finished_s"]]
            assert inside, f"failed outside the killed worker: {row}"
    assert sum(bool(row["error"]) for row in requests) <= 3  # others take over what a dead worker was doing
