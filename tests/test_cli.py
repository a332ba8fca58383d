"""The command line: help that teaches, JSON for machines, one-line errors with exit code 2."""

from __future__ import annotations

import json
import sys

import pytest
import typer
import yaml

from pdplugins import __version__, cli
from tests.programs import exit_code, run

pytestmark = pytest.mark.moderate
WORKER = ("gateway", "--worker", "http://127.0.0.1:1")


def test_plugins_lists_every_fact_as_json() -> None:
    rows = json.loads(run("pdplugins", "plugins", "--json").stdout)
    assert {"kind", "name", "plugin", "hooks", "distribution", "version"} == set(rows[0])
    (dopd,) = (row for row in rows if (row["kind"], row["name"]) == ("planner", "dopd"))
    assert (dopd["distribution"], dopd["version"]) == ("pdplugins", __version__)


def test_config_prints_every_default() -> None:
    whole = yaml.safe_load(run("pdplugins", "config", "dopd").stdout)
    assert whole["planner"]["name"] == "dopd"
    assert "interval_s" in whole["planner"]
    assert whole["slo"] == {"ttft_s": 2.0, "tpot_s": 0.08}


@pytest.mark.parametrize("program", ["pdplugins", "dynamo"])
def test_help_shows_the_commands(program: str) -> None:
    done = run(program, "--help")
    assert done.returncode == 0
    commands = {"pdplugins": ("plugins", "config", "replay", "explain", "doctor"), "dynamo": ("serve",)}
    assert all(command in done.stdout for command in commands[program])


def test_version_is_told() -> None:
    assert run("pdplugins", "--version").stdout == f"pdplugins {__version__}\n"


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("pdplugins", ["config", "nothing"], "nothing.yaml: No such file"),
        ("pdplugins", ["replay", "--planner", "nobody", "--trace", "synthetic"], "planner"),
        ("pdplugins", ["replay", "--planner", "dopd", "--trace", "nowhere.csv"], "nowhere.csv"),
        ("dynamo", ["serve", "--planner", "nobody"], "planner: there is no 'nobody'; choose from"),
        ("dynamo", ["serve", "--planner", "dopd", "--engine", "abacus"], "mocker"),
        ("dynamo", ["serve", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        ("dynamo", ["serve", "--log-dir", "/dev/null"], "--log-dir /dev/null: File exists; give a folder"),
        (
            "pdplugins",
            ["planner", "--metrics-host", "no.such", "--metrics-port", "9191"],
            "cannot listen on no.such:9191",
        ),
        ("dynamo", ["serve", "--planner", "dopd", "--trace", "nowhere.csv"], "nowhere.csv"),
        ("pdplugins", ["gateway", "--worker", "http://[::1"], "--worker: 'http://[::1' is no URL"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(program: str, arguments: list[str], message: str) -> None:
    done = run(program, *arguments)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "dopd", "--trace", "dmeo"], "dmeo: no such trace; did you mean demo? Else: published traces"),
        (["simulate", "dpod"], "dpod.yaml: No such file or directory; did you mean dopd? Else: shipped configs are"),
        (
            ["simulate", "dopd", "--set", "router=randm"],
            "dopd: router: there is no 'randm'; did you mean random? Else:",
        ),
        (["replay", "--planner", "dpod", "--trace", "demo"], "planner: there is no 'dpod'; did you mean dopd? Else:"),
        (
            ["replay", "--planner", "dyn-sla:kalmn", "--trace", "demo"],
            "planner dyn-sla: there is no 'kalmn'; did you mean kalman? Else:",
        ),
        (["gateway", "--config", "fusoin"], "fusoin.yaml: No such file or directory; did you mean fusion? Else:"),
        (
            ["advise", "--trace", "demo", "--gpu", "H1000"],
            "profile: there is no 'H1000/llama-3.1-70b-fp8'; did you mean",
        ),
    ],
)
def test_what_was_probably_meant_comes_before_what_else_there_is(arguments: list[str], said: str) -> None:
    done = run("pdplugins", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"pdplugins: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*WORKER, "--admin-host", ""], "--admin-host: say which address"),
        ([*WORKER, "--port", "99999"], "pdplugins gateway: Invalid value for '--port'"),
        ([*WORKER, "--host", ""], "--host: say which address"),
        ([*WORKER, "--decision-log", ".", "--processes", "2"], "--decision-log .: is a folder"),
        ([*WORKER, "--api-keys", "none"], "--api-keys none: No such file"),
        ([*WORKER, "--admin-host", "10.0.0.1"], "--admin-host 10.0.0.1: others can reach it"),
        (["gateway", "--worker", "http://127.0.0.1:99999"], "--worker: 'http://127.0.0.1:99999' is no URL"),
        (["gateway", "--worker", "http://u:hunter2@127.0.0.1"], "--worker: leave user and password out"),
        (["planner", "--listen", ":99999"], "--listen: ':99999' is no HOST:PORT"),
        (["planner", "--metrics-port", "99999"], "Invalid value for '--metrics-port'"),
        (["planner", "--frontend-url", "http://[::1"], "frontend_url: 'http://[::1' is no URL"),
        (["planner", "--allow-from", "everyone"], "--allow-from: 'everyone' is no address"),
        (["doctor", "--port", "99999"], "Invalid value for '--port'"),
        (["explain"], "Missing argument 'LOG'; see pdplugins explain --help"),
        (["explain", "/dev/null"], "/dev/null: no run in it"),
        (["explain", "LOG", "--shadow", "--verify"], "explain: --shadow tells of whole runs; leave out --verify"),
        (["explain", "LOG", "--shadow", "--request", "a"], "explain: --shadow tells of whole runs; leave out"),
        (["explain", "LOG", "--shadow", "--kind", "router"], "explain: --shadow tells of whole runs; leave out"),
        (["explain", "/dev/urandom"], "/dev/urandom:1: not a line of a decision log"),
        (["bench", "decisions", "--workers", "1000000000"], "Invalid value for '--workers'"),
        (
            ["gateway-key", "/dev/null", "alice"],
            "gateway-key: /dev/null: no file, so it would keep no key; name a file",
        ),
        (["gateway-key", "-", "alice"], "gateway-key: -: no file, so it would keep no key; name a file"),
        (["config", "/dev/zero"], "/dev/zero: larger than 128 KiB"),
        (
            ["gateway-key", "/no/such/folder/keys", "alice"],
            "/no/such/folder/keys: No such file or directory; give a path",
        ),
        (["serve"], "No such command 'serve'"),
        (
            ["simulate", "dopd", "--trace"],
            "pdplugins simulate: Option '--trace' requires an argument; see pdplugins simulate",
        ),
        (["trace", "info", "demo", "--json"], "pdplugins trace info: Option '--json' requires an argument"),
        (["explain", "LOG", "--kind", "planer"], "Invalid value for '--kind': 'planer' is not one of"),
        ([*WORKER, "--decision-log", "no/such/log"], "log no/such/log: there is no folder no/such; choose a file"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PDPLUGINS_WORKER_KEY", raising=False)
    assert exit_code(arguments, monkeypatch) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.err


@pytest.mark.parametrize(("value", "code"), [("done", 0), (True, 0), (None, 0), (3, 3)])
def test_what_the_command_of_a_plugin_returns_is_no_failure(
    value: object, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = typer.Typer()
    application.callback()(lambda: None)
    application.command("hello")(lambda: value)
    monkeypatch.setattr(sys, "argv", ["pdplugins", "hello"])
    with pytest.raises(SystemExit) as ended:
        cli._run(application, "pdplugins")
    assert ended.value.code == code
