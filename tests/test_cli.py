"""The command line: help that teaches, JSON for machines, one-line errors with exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from pdplugins import __version__

pytestmark = pytest.mark.moderate


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    entry = {"pdplugins": "main", "dynamo": "dynamo_main"}[program]
    code = f"import sys; from pdplugins.cli import {entry}; {entry}()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


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


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("pdplugins", ["config", "nothing"], "nothing.yaml: No such file"),
        ("pdplugins", ["replay", "--planner", "nobody", "--trace", "synthetic"], "planner"),
        ("pdplugins", ["replay", "--planner", "dopd", "--trace", "nowhere.csv"], "nowhere.csv"),
        ("dynamo", ["serve", "--planner", "nobody"], "planner: there is no 'nobody'; choose from"),
        ("dynamo", ["serve", "--planner", "dopd", "--engine", "abacus"], "mocker"),
        ("dynamo", ["serve", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        ("dynamo", ["serve", "--planner", "dopd", "--replay", "nowhere.csv"], "nowhere.csv"),
        ("dynamo", ["serve", "--port", "99999"], "dynamo serve: Invalid value for '--port'"),
        ("pdplugins", ["gateway", "--worker", "http://127.0.0.1:1", "--port", "99999"], "Invalid value for '--port'"),
        ("pdplugins", ["gateway", "--worker", "http://[::1"], "--worker: 'http://[::1' is no URL"),
        (
            "pdplugins",
            ["gateway", "--worker", "http://127.0.0.1:99999"],
            "--worker: 'http://127.0.0.1:99999' is no URL",
        ),
        ("pdplugins", ["gateway", "--worker", "http://u:pw@127.0.0.1"], "--worker: leave user and password out"),
        ("pdplugins", ["gateway", "--worker", "http://127.0.0.1:1", "--host", ""], "--host: say which address"),
        (
            "pdplugins",
            ["gateway", "--worker", "http://127.0.0.1:1", "--api-keys", "none"],
            "--api-keys none: No such file",
        ),
        ("pdplugins", ["planner", "--listen", ":99999"], "--listen: ':99999' is no HOST:PORT"),
        ("pdplugins", ["planner", "--metrics-port", "99999"], "Invalid value for '--metrics-port'"),
        ("pdplugins", ["planner", "--frontend-url", "http://[::1"], "frontend_url: 'http://[::1' is no URL"),
        ("pdplugins", ["doctor", "--port", "99999"], "Invalid value for '--port'"),
        ("pdplugins", ["explain"], "Missing argument 'LOG'; see pdplugins explain --help"),
        ("pdplugins", ["config", "/dev/zero"], "/dev/zero: larger than 128 KiB"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(program: str, arguments: list[str], message: str) -> None:
    done = run(program, *arguments)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("program", ["pdplugins", "dynamo"])
def test_help_shows_the_commands(program: str) -> None:
    done = run(program, "--help")
    assert done.returncode == 0
    commands = {"pdplugins": ("plugins", "config", "replay", "explain", "doctor"), "dynamo": ("serve",)}
    assert all(command in done.stdout for command in commands[program])


def test_version_is_told() -> None:
    assert run("pdplugins", "--version").stdout == f"pdplugins {__version__}\n"
