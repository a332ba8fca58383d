"""What the load client wrote, as live numbers and as the report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdplugins import verdict
from pdplugins.config import Config
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.local import misses
from pdplugins.hosts.dynamo.local.load import Load
from pdplugins.hosts.dynamo.local.options import LiveReplay, pick_config
from pdplugins.processes.process import Process
from pdplugins.results import Result, Scaling
from pdplugins.runtime.assembly import build_deployment
from pdplugins.types import TraceRequest
from tests.hosts.dynamo.local.made import options

CONFIG = pick_config("dopd", None, None, None, 2.0)


def row(request: int, ttft_s: float, tpot_s: float = 0.02, error: str | None = None) -> dict[str, Any]:
    times = [] if error else [request + ttft_s, request + ttft_s + tpot_s]
    return {
        "request": request,
        "arrival_s": float(request),
        "finished_s": request + 5.0,
        "isl_tokens": 100,
        "osl_tokens": len(times),
        "token_times_s": times,
        "error": error,
        "workers": {},
    }


@pytest.fixture
def load(tmp_path: Path) -> Load:
    replay = LiveReplay(Path("trace.csv"), 60.0, 2.0, None, [TraceRequest(float(n), 100, 2) for n in range(3)])
    made = options(config=CONFIG, replay=replay, command="dynamo serve --trace trace.csv")
    return Load(replay, made, tmp_path, tmp_path)


def write(tmp_path: Path, text: str) -> None:
    with (tmp_path / "requests.jsonl").open("a") as file:
        file.write(text)


def test_records_are_taken_in_as_they_come(load: Load, tmp_path: Path) -> None:
    """Half a line waits for its other half; nothing is counted twice."""
    load.follow()
    assert (load.records, load.attainment) == ([], None)
    second = json.dumps(row(1, 9.0))
    write(tmp_path, '{"requests": 3}\n{"started": 1.0}\n' + json.dumps(row(0, 0.5)) + "\n" + second[:20])
    load.follow()
    load.follow()
    assert (len(load.records), load.attainment) == (1, 1.0)
    write(tmp_path, second[20:] + "\n" + json.dumps(row(2, 0, error="HTTP 500")) + "\n")
    load.follow()
    assert (len(load.records), load.failed, load.finished_s) == (3, 1, 7.0)
    assert load.attainment == pytest.approx(1 / 3)


@pytest.mark.moderate
def test_a_client_that_is_stopped_is_noticed(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.hosts.dynamo.local.load.LOOK_S", 0.05)
    monkeypatch.setattr("pdplugins.hosts.dynamo.local.load.STOPPED_S", 0.5)

    async def run() -> None:
        process = Process.start("client", ["sleep", "600"], env=dict(os.environ), log=tmp_path / "log", stdin=True)
        load._process = process
        running = asyncio.create_task(load.run())
        await asyncio.sleep(1)
        assert not running.done()
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(HostError, match=r"has been stopped for 0\.5 s"):
            await asyncio.wait_for(running, 30)
        process.kill()
        await process.exited.wait()

    asyncio.run(run())


def test_a_client_that_has_ended_before_it_may_send_is_told_with_its_last_words(load: Load, tmp_path: Path) -> None:
    """Its broken pipe is not standard output, which nobody reads any more: that would end in silence."""

    async def run() -> None:
        command = ["sh", "-c", "echo out of memory; exit 3"]
        load._process = Process.start("client", command, env=dict(os.environ), log=tmp_path / "log", stdin=True)
        await load._process.exited.wait()
        with pytest.raises(HostError, match="the load client exited with code 3 early: out of memory"):
            await load.run()

    asyncio.run(run())


def test_the_report_says_what_was_measured_and_how(load: Load, tmp_path: Path) -> None:
    """One schema for every kind of run; the mocker's part in the times is said in it."""
    write(tmp_path, "".join(json.dumps(row(n, 0.5)) + "\n" for n in range(3)))
    load.follow()
    scaling = [Scaling(at_s=0.0, prefill=1, decode=1, reason="workers at start")]
    result = load.result(gpu_hours=0.25, wall_s=8.0, scaling=scaling)
    result.write(tmp_path / "report.json")
    result = Result.model_validate_json((tmp_path / "report.json").read_text())
    assert result.kind == "measured"
    assert (result.requests.total, result.requests.failed) == (3, 0)
    assert result.metrics.slo_attainment == 1.0
    assert result.metrics.goodput_requests_per_s == pytest.approx(3 / 7)
    assert result.metrics.gpu_hours == 0.25
    assert result.speed.requests_per_s is None
    assert "mocker" in result.config["replay"]["note"]
    load._options = replace(load._options, engine="sglang")
    assert "note" not in load.result(gpu_hours=0.25, wall_s=8.0, scaling=scaling).config["replay"]
    assert result.config["replay"]["speed"] == 2.0
    assert result.versions["ai-dynamo"].startswith("1.4")


def test_the_verdict_is_of_the_records(load: Load, tmp_path: Path) -> None:
    """What missed which objective, and what fixed pools would have done; a replay is good without the latter."""
    write(tmp_path, "".join(json.dumps(row(n, 9.0 if n else 0.5)) + "\n" for n in range(3)))
    load.follow()
    scaling = [Scaling(at_s=0.0, prefill=1, decode=1), Scaling(at_s=0.5, prefill=2, decode=1)]
    result = load.result(gpu_hours=7 * 4 / 3600, wall_s=8.0, scaling=scaling)
    deployment = build_deployment(CONFIG)
    said = verdict.lines(misses.missed(load.records, result, deployment, startup_s=2.0), deployment.slo)
    assert said[0].startswith("Missed: 66.7 % of requests")
    held = []

    def hindsight(config: Config, requests: Sequence[TraceRequest], gpus: float) -> list[str]:
        held.append((len(requests), gpus))
        return ["5 GPUs would have done"]

    def broken(*_: object) -> list[str]:
        raise RuntimeError("no simulator")

    looks = [misses.looking_back(one, CONFIG, load.requests, result) for one in (hindsight, broken, None)]
    assert looks == [["5 GPUs would have done"], [], []]
    ((count, gpus),) = held
    assert (count, gpus) == (load.total, pytest.approx(7 * 4 / load.finished_s))
