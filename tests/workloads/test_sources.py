"""What ``--trace`` names, and what that is read from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, TraceError
from pdplugins.files import check_apart
from pdplugins.workloads import traces
from pdplugins.workloads.sources import MOST_PARTS, inputs
from tests.workloads.files import AGENTIC, write


def test_what_a_trace_is_read_from_is_known_before(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no output takes its place."""
    monkeypatch.chdir(clients)
    write(clients, AGENTIC, "rounds.csv")
    write(clients, "workload: agentic-csv\npath: rounds.csv\n", "one.yaml")
    write(clients, "mix: [{trace: one.yaml}, {trace: chunk-1-trace.csv}]\n", "mix.yaml")
    for trace, read in (
        ("agentic-csv:path=rounds.csv", {"rounds.csv"}),
        ("one.yaml", {"one.yaml", "rounds.csv"}),
        ("mix.yaml", {"mix.yaml", "one.yaml", "rounds.csv", "chunk-1-trace.csv", "chunk-1-dataset.json"}),
        ("chunk-1-trace.csv", {"chunk-1-trace.csv", "chunk-1-dataset.json"}),
    ):
        for name in read:
            with pytest.raises(ConfigError, match=f"^--json {name} is also .*--trace; name another file$"):
                check_apart({"--json": Path(name)}, inputs("--trace", trace))
        check_apart({"--json": Path("chunk-2-trace.csv")}, inputs("--trace", trace))
    with pytest.raises(ConfigError, match=r"^--json .*chunk-2-trace\.csv is also .*, a file of --trace; name another"):
        check_apart({"--json": clients / "chunk-2-trace.csv"}, inputs("--trace", clients))
    assert inputs("--trace", None) == {}
    assert inputs("--trace", "no-such-trace") == {"--trace": Path("no-such-trace")}


def test_the_parts_of_the_largest_mix_are_known_before(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clients)
    write(clients, f"mix: [{', '.join(['{trace: chunk-1-trace.csv}'] * MOST_PARTS)}]\n", "mix.yaml")
    assert traces.read(Path("mix.yaml"))
    with pytest.raises(ConfigError, match=r"^--json chunk-1-trace\.csv is also"):
        check_apart({"--json": Path("chunk-1-trace.csv")}, inputs("--trace", "mix.yaml"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parts", [1, 10, 1000])
def test_a_mix_that_is_a_part_of_itself_is_looked_at_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, f"mix: [{', '.join(['{trace: mix.yaml}'] * parts)}]\n", "mix.yaml")
    assert inputs("--trace", "mix.yaml") == {"--trace": Path("mix.yaml")}
    with pytest.raises(TraceError, match=r"mix\.yaml"):
        traces.read(Path("mix.yaml"))


@pytest.mark.parametrize("path", [".", "''", "/"])
def test_a_folder_without_a_name_is_no_trace(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, f"workload: mooncake-jsonl\npath: {path}\n", "odd.yaml")
    assert Path("odd.yaml") in inputs("--trace", "odd.yaml").values()
    with pytest.raises(TraceError, match="Is a directory"):
        traces.read(Path("odd.yaml"))


@pytest.mark.timeout(60)
def test_a_pipe_is_no_workload_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    assert inputs("--trace", "pipe.yaml") == {"--trace": Path("pipe.yaml")}
    with pytest.raises(TraceError, match=r"^pipe\.yaml: a pipe or a device; write it to a file first$"):
        traces.read(Path("pipe.yaml"))


@pytest.mark.parametrize("setting", ["duration_s=5", "arrivals.rate=50"])
def test_a_setting_that_each_phase_has_itself_is_refused(setting: str) -> None:
    """It would change nothing."""
    with pytest.raises(ConfigError, match=f"demo: each phase of it sets {setting[:8]}"):
        traces.read(f"demo:{setting}")


def test_a_setting_that_no_phase_has_is_one_for_all() -> None:
    assert {request.osl_tokens for request in traces.read("demo:osl_tokens=10")[:50]} == {10}


def test_a_mistyped_setting_is_told_beside_those_of_the_workload() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'sed'.*\bseed\b"):
        traces.read("demo:sed=2")
