"""A trace that is read request by request is the trace that is read as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, PdpluginsError, TraceError
from pdplugins.workloads import lazy, traces
from pdplugins.workloads.transform import Transform


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:15:{at:02d}.5000000,{500 + at},{20 + at}\n" for at in range(40)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines))
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    rows = ({"timestamp": 5 + 130 * at, "input_length": 9 + at, "output_length": 4} for at in range(30))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


PHASES = (
    "phases=[{duration_s: 5, arrivals: {kind: poisson, rate: 9}}, {duration_s: 5, arrivals: {kind: poisson, rate: 2}}]"
)


@pytest.mark.parametrize("trace", ["demo", "azure-like:duration_s=20", f"synthetic:{PHASES}", "synthetic:requests=20"])
def test_a_generated_trace_is_the_same(trace: str) -> None:
    assert list(lazy.requests(trace)) == traces.read(trace)


@pytest.mark.parametrize("kind", ["azure", "mooncake"])
def test_a_trace_of_a_file_is_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    assert list(lazy.requests(path)) == traces.read(path)


def test_a_workload_file_may_name_a_trace_beside_it(azure: Path) -> None:
    file = azure.with_name("w.yaml")
    file.write_text("workload: azure-csv\npath: azure.csv\n")
    assert list(lazy.requests(file)) == traces.read(file) == traces.read(azure)


@pytest.mark.parametrize(
    "changes",
    [
        Transform(),
        Transform(clip_s=10),
        Transform(max_requests=7),
        Transform(clip_s=10, max_requests=15, max_context_tokens=520),
    ],
)
def test_changes_are_the_same(changes: Transform, azure: Path) -> None:
    assert list(lazy.changed(lazy.requests(azure), changes)) == changes.apply(traces.read(azure))


def test_a_long_trace_is_not_read_to_its_end(azure: Path) -> None:
    with azure.open("a") as file:
        file.write("no time,1,1\n")
    assert len(list(lazy.changed(lazy.requests(azure), Transform(max_requests=30)))) == 30
    with pytest.raises(TraceError):
        list(lazy.requests(azure))


def test_what_would_have_to_be_sorted_is_refused(azure: Path, tmp_path: Path) -> None:
    with azure.open("a") as file:
        file.write("2023-11-16 18:15:01.0000000,9,9\n")
    with pytest.raises(TraceError, match="request 41 comes before the one ahead of it; run without --stream"):
        list(lazy.requests(azure))
    mix = tmp_path / "mix.yaml"
    mix.write_text("mix: [{trace: demo}]\n")
    with pytest.raises(TraceError, match="without --stream"):
        lazy.requests(mix)


@pytest.mark.parametrize("trace", ["nobody", "synthetic:requests=0", "synthetic:nonsense=1"])
def test_a_mistake_is_the_same(trace: str) -> None:
    with pytest.raises(PdpluginsError) as whole:
        traces.read(trace)
    with pytest.raises(PdpluginsError) as streamed:
        list(lazy.requests(trace))
    assert str(streamed.value) == str(whole.value)


def test_an_empty_trace_is_refused(azure: Path) -> None:
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(TraceError, match="no request in it"):
        list(lazy.requests(azure))


def test_a_number_of_requests_that_nobody_can_count_to_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_requests: .* at most 1000000000"):
        Transform.of(max_requests=10**20)
