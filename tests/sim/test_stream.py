"""A streamed run gives the results of any other run, and its memory does not grow with the number of requests."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from pdplugins import metrics
from pdplugins.config import named, parse
from pdplugins.errors import PdpluginsError
from pdplugins.sim.report import recordfile
from pdplugins.sim.run import simulate as whole
from pdplugins.sim.stream import run as streamed
from pdplugins.sim.stream import totals
from pdplugins.sim.stream.sketch import Sketch
from pdplugins.workloads import lazy, traces
from pdplugins.workloads.trace import TraceRequest
from tests.command_line import invoke

SESSIONS = "synthetic:requests=60,sessions={rounds: 3, gap_s: 1, new_tokens: 50},arrivals={kind: poisson, rate: 4}"
CLOSE = 2e-4
"""The share of a quantile by which a sketch may be off."""


def spreads(result: Any) -> dict[str, dict[str, float]]:
    return {key: value for key, value in result.metrics.model_dump().items() if isinstance(value, dict)}


@pytest.mark.moderate
@pytest.mark.parametrize(("config", "trace"), [("dopd", "demo"), ("arrow", SESSIONS), ("rapid", "demo")])
def test_a_streamed_run_says_what_a_whole_run_says(
    config: str, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "CHUNK", 7)
    facts: dict[str, Any] = {"trace_name": trace, "command": "", "seed": 3}
    one, outcome = whole.simulate(named(config), traces.read(trace), **facts)
    other = streamed.simulate(named(config), lazy.requests(trace), records=tmp_path / "b.jsonl", **facts)
    recordfile.write(outcome.records, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    assert (other.requests, other.scaling, other.counts) == (one.requests, one.scaling, one.counts)
    assert other.speed.duration_s == one.speed.duration_s
    aside = dict.fromkeys(spreads(one))
    assert other.metrics.model_copy(update=aside) == one.metrics.model_copy(update=aside)
    for name, spread in spreads(one).items():
        found = spreads(other)[name]
        assert found.pop("mean") == pytest.approx(spread.pop("mean"), rel=1e-12)
        assert found == pytest.approx(spread, rel=CLOSE), name


def peak_bytes(requests: int) -> int:
    config = parse({"router": "round-robin", "deployment": {"prefill": {"replicas": 4}, "decode": {"replicas": 4}}})
    arrivals = (TraceRequest(number / 8, 200, 3) for number in range(requests))
    tracemalloc.start()
    try:
        result = streamed.simulate(config, arrivals, trace_name="", command="")
        assert result.requests.total == requests
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.moderate
def test_memory_does_not_grow_with_the_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one pointer of each: a record that is kept takes hundreds of bytes."""
    monkeypatch.setattr(totals, "CHUNK", 256)
    few, many = 1500, 6000
    peak_bytes(300)  # loads what is loaded once
    assert peak_bytes(many) - peak_bytes(few) < 24 * (many - few)


def test_an_interrupted_run_counts_what_had_ended(tmp_path: Path) -> None:
    def stop(now_s: float) -> None:
        if now_s > 20:
            raise KeyboardInterrupt

    file = tmp_path / "r.jsonl"
    result = streamed.simulate(
        named("stock-least-loaded"), lazy.requests("demo"), trace_name="", command="", progress=stop, records=file
    )
    assert result.interrupted
    assert 0 < result.requests.total == len(file.read_text().splitlines()) < len(traces.read("demo"))


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_sketch_is_close_to_the_samples(count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.lognormal(-3, 2, count)
    values[::10] = 0.0
    sketch = Sketch()
    for part in np.array_split(values, 3):
        sketch.add(part)
    assert sketch.distribution() == pytest.approx(metrics.distribution(values), rel=CLOSE)


def test_a_sketch_of_weighted_samples_is_close_to_them() -> None:
    rng = np.random.default_rng(0)
    values, counts = rng.lognormal(-3, 1, 500), rng.integers(1, 100, 500)
    sketch = Sketch()
    sketch.add(values, counts)
    assert sketch.weighted() == pytest.approx(metrics.weighted_distribution(values, counts), rel=CLOSE)


def test_a_sketch_of_nothing_has_no_distribution() -> None:
    assert (Sketch().distribution(), Sketch().weighted()) == (None, None)


def test_a_sketch_keeps_what_is_out_of_its_range_at_the_ends() -> None:
    sketch = Sketch()
    sketch.add(np.array([1e-15, 1e-15, 1e12]))
    found = sketch.distribution()
    assert found is not None
    assert found.p50 == 0.0
    assert found.mean == pytest.approx(1e12 / 3)


def run(*arguments: str | Path) -> Result:
    return invoke("simulate", "stock-least-loaded", "--stream", *arguments)


def test_the_command_streams(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = run("--trace", "demo", "--clip-s", "20", "--json", str(out))
    assert done.exit_code == 0, done.output
    assert "SLO attainment" in done.output
    assert json.loads(out.read_text())["config"]["run"]["streamed"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "r.html"], "--html, --bound or --decision-log"),
        (["--bound"], "leave them out"),
        (["--decision-log", "d.jsonl"], "leave them out"),
        (["--rate", "3"], "set the rate of the workload"),
    ],
)
def test_what_needs_the_whole_run_is_refused(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, PdpluginsError), done.output
    assert message in str(done.exception)


@pytest.mark.parametrize("late_s", [40_000.0, 80_000.0])
def test_a_request_late_in_a_day_is_served_as_an_early_one(late_s: float, tmp_path: Path) -> None:
    """Half a day of ticks fits a machine word; later times take longer to compute with, and are as exact."""

    def latencies(start_s: float) -> list[tuple[float, float]]:
        requests = [TraceRequest(0.0, 1, 1)]
        requests += [
            TraceRequest(start_s + number / 8, 200 + 37 * number % 900, 3 + number % 40) for number in range(80)
        ]
        file = tmp_path / "r.jsonl"
        streamed.simulate(named("stock-least-loaded"), requests, trace_name="", command="", records=file)
        return [(row["ttft_s"], row["tpot_s"]) for row in map(json.loads, file.read_text().splitlines())]

    assert np.array(latencies(late_s)) == pytest.approx(np.array(latencies(100.0)), abs=1e-9)
