"""A real Dynamo frontend with live mocker workers, scraped by a real Prometheus: it has the metrics that are read."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pdplugins.processes.ports import free_ports
from tests.command_line import invoke
from tests.hosts.dynamo.local.serve import Serve
from tests.studies.backtest.recorded import recorded

pytestmark = [pytest.mark.dynamo, pytest.mark.long]
LASTS_S = 30
TRAFFIC = (
    f"synthetic:duration_s={LASTS_S},arrivals={{kind: poisson, rate: 3}},"
    "isl_tokens={kind: lognormal, median: 900, sigma: 0.5},osl_tokens={kind: lognormal, median: 40, sigma: 0.5}"
)


def test_what_a_live_frontend_was_scraped_of_is_rebuilt(tmp_path: Path) -> None:
    port, metrics_port = free_ports(2)
    (tmp_path / "prometheus").mkdir()
    (tmp_path / "temp").mkdir()
    pools = ("--planner", "static", "--prefill", "2", "--decode", "1")
    where = ("--port", str(port), "--metrics-port", str(metrics_port))
    report = tmp_path / "live.json"
    scrapes = [f"127.0.0.1:{port}", f"127.0.0.1:{metrics_port}"]
    with recorded(tmp_path / "prometheus", scrapes=scrapes) as url:
        words = [*pools, *where, "--trace", TRAFFIC, "--json", str(report), "--set", "planner.prefill=2"]
        serve = Serve(words, tmp_path / "temp", {})
        try:
            serve.ready()
            began_s = time.time() - 2
            assert serve.finish() == 0
        finally:
            serve.close()
        out = tmp_path / "out.json"
        asked = ["backtest", "--prometheus", url, "--from", f"{began_s:.0f}", "--to", "now", "--step-s", "5"]
        done = invoke(*asked, "--jobs", "1", "--json", out)
        assert done.exception is None, done.exception
    live, found = json.loads(report.read_text()), json.loads(out.read_text())
    recording = found["recording"]
    # Counters begin with the first answer, and count from the first scrape that has them.
    assert recording["requests"] == pytest.approx(live["requests"]["total"], rel=0.3)
    assert recording["pools"][-1]["prefill"] == 2
    assert recording["pools"][-1]["decode"] == 1
    assert recording["ttft_s"]["mean"] == pytest.approx(live["metrics"]["ttft_s"]["mean"], rel=0.5)
    assert recording["itl_s"]["mean"] == pytest.approx(live["metrics"]["tbt_s"]["mean"], rel=0.2)
    assert {one["name"] for one in found["beside"] if one["off"] is not None} >= {"TTFT mean", "ITL mean"}
    assert "no buckets" not in done.stdout
