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


MINE = "{requests: 5, seed: 1, arrivals: {kind: poisson, rate: 2}, isl_tokens: {kind: uniform, low: 1, high: 999}}"


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml", "my:own.yaml", "sub/mine.yaml"])
def test_a_workload_file_takes_settings_as_a_shipped_one_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    write(tmp_path, MINE, name)
    write(tmp_path, MINE.replace("seed: 1", "seed: 2"), "other.yaml")
    assert traces.read(f"{name}:seed=2") == traces.read("other.yaml") != traces.read(name)
    assert len(traces.read(f"{name}:requests=7,arrivals.rate=9")) == 7
    assert traces.read(f"{name}:") == traces.read(name)
    with pytest.raises(ConfigError, match=f"^--json {name} is also .*, a file of --trace; name another file$"):
        check_apart({"--json": Path(name)}, inputs("--trace", f"{name}:seed=2"))


def test_a_file_whose_name_looks_like_settings_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, MINE, "mine.yaml")
    write(tmp_path, MINE.replace("requests: 5", "requests: 6"), "mine.yaml:seed=2.yaml")
    assert len(traces.read("mine.yaml:seed=2.yaml")) == 6
    assert len(traces.read("mine.yaml:seed=2.yaml:requests=7")) == 7


def test_a_part_of_a_mix_may_be_a_workload_file_with_settings_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    write(tmp_path, MINE, "sub/mine.yaml")
    write(tmp_path, "mix: [{trace: 'mine.yaml:requests=3'}, {trace: mine.yaml}]", "sub/mix.yaml")
    assert len(traces.read("sub/mix.yaml")) == 8
    assert Path("sub/mine.yaml") in inputs("--trace", "sub/mix.yaml").values()


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("mine.yaml:sed=2", r"^mine\.yaml: workload synthetic: unknown key 'sed'; valid keys here are"),
        ("mine.yaml:seed", r"^mine\.yaml: seed: write it as key=value"),
        ("phases.yaml:requests=2", r"^phases\.yaml: each phase of it sets requests itself"),
        ("odd.yaml:requests=2", r"^odd\.yaml: workload synthetic: phases: must be a list"),
        ("mix.yaml:seed=2", r"^mix\.yaml: unknown key 'seed'; valid keys here are mix$"),
        ("rounds.csv:rate=2", "^rounds.csv:rate=2: settings follow the name.*: agentic-csv:path=rounds.csv,rate=2$"),
        ("t.jsonl:seed=2", r"^t\.jsonl:seed=2: mooncake-jsonl has no settings; name t\.jsonl alone$"),
    ],
)
def test_settings_that_a_file_does_not_take_are_one_line(
    trace: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("mine.yaml", MINE),
        ("phases.yaml", "phases: [{requests: 3}, {requests: 4}]"),
        ("odd.yaml", "phases: 3"),
        ("mix.yaml", "mix: [{trace: mine.yaml}]"),
        ("rounds.csv", AGENTIC),
        ("t.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5}\n'),
    ):
        write(tmp_path, text, name)
    with pytest.raises(ConfigError, match=said):
        traces.read(trace)


def test_a_mistyped_setting_is_told_beside_those_of_the_workload() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'sed'.*\bseed\b"):
        traces.read("demo:sed=2")
