"""The files of a command line: no output overwrites what the command reads, and a name that cannot be is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import exit_code, run

pytestmark = pytest.mark.moderate
PROFILES = Path(__file__).parents[1] / "profiles"
WORKER = ("gateway", "--worker", "http://127.0.0.1:1")
REPLAY = ("replay", "--trace", "tr.jsonl")
SIMULATE = ("simulate", "dopd", "--trace", "tr.jsonl")
LONG = "x" * 300


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*SIMULATE, "--json", "tr.jsonl"], "--json tr.jsonl is also --trace"),
        ([*SIMULATE, "--html", "tr.jsonl"], "--html tr.jsonl is also --trace"),
        ([*SIMULATE, "--records", "./tr.jsonl"], "--records tr.jsonl is also --trace"),
        ([*SIMULATE, "--decision-log", "tr.jsonl"], "--decision-log tr.jsonl is also --trace"),
        ([*SIMULATE, "--json", "x", "--html", "x"], "--html x is also --json"),
        (["simulate", "dopd", "--trace", "log.1", "--decision-log", "log"], "its old part log.1 is also --trace"),
        (["simulate", "dopd", "--trace", "log.1", "--decision-log", "link"], "log.1 is also --trace"),
        ([*SIMULATE, "--json", "x.1", "--decision-log", "x"], "--decision-log, its old part x.1 is also --json"),
        ([*SIMULATE, "--json", "-", "--html", "-"], "--html - is also --json"),
        (["simulate", "my.yaml", "--json", "my.yaml"], "--json my.yaml is also CONFIG"),
        (["compare", "dopd", "my.yaml", "--html", "my.yaml"], "--html my.yaml is also CONFIG my.yaml"),
        (["bound", "my.yaml", "--json", "my.yaml"], "--json my.yaml is also CONFIG"),
        (["plan", "my.yaml", "--trace", "demo", "--gpus", "4", "--write-config", "my.yaml"], "is also CONFIG"),
        (["trace", "info", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also TRACE"),
        (["trace", "make", "tr.jsonl", "--out", "tr.jsonl"], "--out tr.jsonl is also TRACE"),
        ([*REPLAY, "--json", "tr.jsonl"], "--json tr.jsonl is also --trace"),
        ([*REPLAY, "--decision-log", "tr.jsonl"], "--decision-log tr.jsonl is also --trace"),
        (["replay", "--trace", "log.1", "--decision-log", "log"], "--decision-log, its old part log.1 is also --trace"),
        (["backtest", "--access-log", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also --access-log"),
        (["advise", "--trace", "tr.jsonl", "--html", "tr.jsonl"], "--html tr.jsonl is also --trace"),
        (["validate", "silicon", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also FILE"),
        (["validate", "dynamo", "--trace", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also --trace"),
        (["planner", "--config", "my.yaml", "--state", "my.yaml"], "--state my.yaml is also --config"),
        (["planner", "--state", "x.1", "--decision-log", "x"], "--state x.1 is also --decision-log, its old part"),
        (["power", "run", "--config", "my.yaml", "--decision-log", "my.yaml"], "my.yaml is also --config"),
        (["power", "run", "--config", "log.1", "--decision-log", "log"], "its old part log.1 is also --config"),
        ([*WORKER, "--config", "my.yaml", "--decision-log", "my.yaml"], "--decision-log my.yaml is also --config"),
        ([*WORKER, "--api-keys", "log", "--decision-log", "log"], "--decision-log log is also --api-keys"),
        ([*WORKER, "--tls-cert", "log.1", "--decision-log", "log"], "its old part log.1 is also --tls-cert"),
        ([*WORKER, "--tls-key", "log", "--decision-log", "link"], "--decision-log link is also --tls-key"),
        ([*WORKER, "--worker-key-file", "log", "--decision-log", "log"], "log is also --worker-key-file"),
        ([*WORKER, "--worker-ca", "log", "--decision-log", "log"], "log is also --worker-ca"),
        ([*WORKER, "--discover", "file:log", "--decision-log", "log"], "log is also --discover file:log"),
        ([*WORKER, "--processes", "2", "--worker-ca", "log-2", "--decision-log", "log"], "log-2 is also --worker-ca"),
    ],
)
def test_an_output_that_is_an_input_or_another_output_is_refused_and_nothing_is_lost(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {"tr.jsonl": "{}\n", "tr.json": "{}\n", "my.yaml": "planner: dopd\n"}
    before |= {"log": "", "log.1": "{}\n", "log-2": ""}
    for name, text in before.items():
        Path(name).write_text(text)
    Path("link").symlink_to("log")
    before["link"] = ""
    assert exit_code(arguments, monkeypatch) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert f"{said}; name another file" in told.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "my.yaml", "--trace", "tr.jsonl", "--json", "p.json"],
        ["simulate", "my.yaml", "--trace", "tr.jsonl", "--decision-log", "p.json"],
        ["simulate", "my.yaml", "--trace", "tr.jsonl", "--stream", "--json", "p.json"],
        ["compare", "my.yaml", "--trace", "tr.jsonl", "--html", "p.json"],
        ["bound", "my.yaml", "--trace", "tr.jsonl", "--json", "p.json"],
        ["plan", "my.yaml", "--trace", "tr.jsonl", "--gpus", "4", "--json", "p.json"],
        ["backtest", "my.yaml", "--access-log", "tr.jsonl", "--json", "p.json"],
        ["replay", "--config", "my.yaml", "--trace", "tr.jsonl", "--json", "p.json"],
        ["replay", "--config", "my.yaml", "--trace", "tr.jsonl", "--decision-log", "p.json"],
    ],
)
def test_an_output_that_is_a_profile_of_the_config_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = (PROFILES / "a100" / "llama-3.1-8b.json").read_text()
    Path("p.json").write_text(profile)
    Path("tr.jsonl").write_text('{"timestamp": 0, "input_length": 100, "output_length": 10}\n')
    Path("my.yaml").write_text("planner: dopd\ndeployment: {profile: p.json}\n")
    assert exit_code(arguments, monkeypatch) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "p.json is also p.json, a profile of my.yaml; name another file" in told.err
    assert Path("p.json").read_text() == profile


def test_a_live_stack_does_not_write_into_a_profile_of_its_config(tmp_path: Path) -> None:
    profile = (PROFILES / "a100" / "llama-3.1-8b.json").read_text()
    (tmp_path / "p.json").write_text(profile)
    (tmp_path / "my.yaml").write_text(f"planner: dopd\ndeployment: {{profile: {tmp_path}/p.json}}\n")
    done = run("dynamo", "serve", "--config", f"{tmp_path}/my.yaml", "--decision-log", f"{tmp_path}/p.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "a profile of" in done.stderr
    assert (tmp_path / "p.json").read_text() == profile


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "dopd", "--trace", "tr\udcff.jsonl", "--json", "o.json"],
        ["advise", "--trace", "demo", "--model-path", "x\udcff", "--save-dir", "D"],
        ["trace", "info", "demo", "--plot=\udcff.svg"],
    ],
)
def test_an_argument_that_is_no_text_is_refused_before_the_work(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code(arguments, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "?" in said
    assert said.endswith("is no UTF-8 text, as results are; rename the file or mend it\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", LONG],
        ["config", f"{LONG}/my.yaml"],
        ["simulate", LONG],
        ["simulate", "dopd", "--trace", LONG],
        ["simulate", "dopd", "--trace", f"{LONG}.csv"],
        ["simulate", "dopd", "--trace", "demo", "--json", LONG],
        ["simulate", "dopd", "--trace", "demo", "--json", f"{LONG}/a.json"],
        ["simulate", "dopd", "--trace", "demo", "--records", f"{LONG}.jsonl"],
        ["simulate", "dopd", "--trace", "demo", "--decision-log", LONG],
        ["simulate", "dopd", "--trace", "demo", "--profile", f"{LONG}.json"],
        ["compare", LONG, "dopd"],
        ["bound", "dopd", "--trace", "demo", "--json", LONG],
        ["bound", LONG, "--trace", "demo"],
        ["plan", "ampd", "--trace", "sessions", "--gpus", "4", "--write-config", LONG],
        ["advise", "--trace", "demo", "--save-dir", LONG],
        ["advise", "--trace", "demo", "--html", LONG],
        ["advise", "--trace", LONG],
        ["backtest", "--access-log", LONG],
        ["backtest", "--prometheus", "http://127.0.0.1:1", "--token-file", LONG],
        ["explain", LONG],
        ["explain", LONG, "--verify"],
        ["explain", LONG, "--shadow"],
        ["gateway-key", LONG, "alice"],
        ["gateway-key", f"{LONG}/keys", "alice"],
        ["replay", "--trace", LONG],
        ["replay", "--trace", "demo", "--html", LONG],
        ["replay", "--trace", "demo", "--config", LONG],
        ["trace", "info", LONG],
        ["trace", "info", "demo", "--json", LONG],
        ["trace", "info", "demo", "--plot", f"{LONG}.svg"],
        ["trace", "make", "demo", "--out", LONG],
        ["profile", "show", LONG],
        ["profile", "show", "h100/llama-3.1-70b-fp8", "--plot", f"{LONG}.svg"],
        ["profile", "export-npz", "h100/llama-3.1-70b-fp8", "--out", LONG],
        ["profile", "from-npz", LONG, "--gpu", "h100", "--model", "Qwen/Qwen3-32B", "--out", "a.json"],
        ["profile", "roofline", "--gpu", "h100", "--model", LONG, "--out", "a.json"],
        ["profile", "roofline", "--gpu", "h100", "--model", "Qwen/Qwen3-32B", "--out", LONG],
        ["validate", "silicon", LONG],
        ["validate", "papers", "--json", LONG],
        ["planner", "--state", LONG],
        ["planner", "--config", LONG],
        ["power", "run", "--config", LONG],
        ["bench", "decisions", "--json", LONG],
    ],
)
def test_a_name_that_the_file_system_refuses_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code(arguments, monkeypatch) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
