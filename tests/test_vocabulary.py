"""One vocabulary: names of before work and say so, examples are true, values are completed, results go to pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pdplugins import cli, config, entry
from pdplugins.errors import ConfigError
from pdplugins.registry import default_registry
from pdplugins.vocabulary import EXAMPLES, RENAMED, modern, prepare, writes_to_stdout
from pdplugins.workloads import traces
from tests.programs import PDPLUGINS, run

SHARED = {
    "simulate": "--trace --rate --clip-s --gpus --prefill --decode --ttft --tpot --set --json --html --records --seed",
    "compare": "--trace --rate --clip-s --gpus --prefill --decode --ttft --tpot --set --json --html --seed",
    "replay": "--trace --clip-s --gpus --prefill --decode --ttft --tpot --set --json --html",
    "serve": "--trace --clip-s --gpus --prefill --decode --ttft --tpot --set --json --html",
    "bound": "--trace --rate --clip-s --gpus --ttft --tpot --set --json",
    "plan": "--trace --rate --clip-s --gpus --ttft --tpot --set --json --html --seed",
    "advise": "--trace --rate --clip-s --gpus --ttft --tpot --json --html --seed",
    "backtest": "--gpus --prefill --decode --ttft --tpot --set --json --html --seed",
    "bench decisions": "--json --seed",
}
"""By command: the options that are called the same everywhere."""


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    """Every command that there is, by its words."""
    app = typer.Typer(**cli._SETTINGS)
    app.command()(cli.plugins)
    app.command()(cli.config)
    default_registry().add_commands(app)
    found: dict[str, Any] = {}
    for whole in (app, cli.dynamo_app):
        command = typer.main.get_command(whole)
        prepare(command)
        found |= dict(below(command))
    return found


def below(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group that are no groups themselves."""
    for name, one in command.commands.items():
        where = f"{path} {name}".strip()
        if hasattr(one, "commands"):
            yield from below(one, where)
        else:
            yield where, one


@pytest.mark.parametrize("name", SHARED)
def test_an_option_has_one_name_in_every_command(commands: dict[str, Any], name: str) -> None:
    options = {option for parameter in commands[name].params for option in parameter.opts}
    assert set(SHARED[name].split()) - options == set()
    assert set(RENAMED.get(name, {})) & options == set()
    assert set(RENAMED.get(name, {}).values()) - options == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_help_ends_with_two_examples_that_can_be_typed(commands: dict[str, Any], name: str) -> None:
    assert all(example in commands[name].epilog for example in EXAMPLES[name])
    for example in EXAMPLES[name]:
        program, *words = example.split()
        assert program == ("dynamo" if name == "serve" else "pdplugins")
        assert words[: len(name.split())] == name.split()
        commands[name].make_context(name, words[len(name.split()) :])


def test_every_command_of_the_vocabulary_has_examples(commands: dict[str, Any]) -> None:
    assert set(SHARED) <= set(EXAMPLES) <= set(commands)


@pytest.mark.parametrize(
    ("words", "now", "hints"),
    [
        ("replay --gpu-budget 8 --trace x", "replay --gpus 8 --trace x", 1),
        ("replay --duration=60 --initial 3P1D", "replay --clip-s=60 --prefill 3 --decode 1", 2),
        ("replay --initial=nonsense", "replay --initial=nonsense", 0),
        ("serve --replay demo --report out.json", "serve --trace demo --json out.json", 2),
        ("simulate dopd --duration 60", "simulate dopd --duration 60", 0),
        ("--version", "--version", 0),
        ("serve --dashboard", "serve --dashboard=127.0.0.1:8090", 0),
        ("gateway --dashboard --port 0", "gateway --dashboard=127.0.0.1:8090 --port 0", 0),
        ("gateway --dashboard 9000 --dashboard=[::1]:9", "gateway --dashboard 9000 --dashboard=[::1]:9", 0),
    ],
)
def test_names_of_before_work_and_say_what_they_are_called_now(words: str, now: str, hints: int) -> None:
    found, said = modern(words.split())
    assert (found, len(said)) == (now.split(), hints)


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        ("simulate dopd --json -", True),
        ("simulate dopd --json=-", True),
        ("simulate dopd --json out.json", False),
        ("simulate - --seed 1", False),
    ],
)
def test_a_result_for_standard_output_is_noticed(words: str, alone: bool) -> None:
    assert writes_to_stdout(words.split()) is alone


def test_the_page_has_every_name_of_before() -> None:
    page = (Path(__file__).parents[1] / "docs/commands.md").read_text()
    for renamed in RENAMED.values():
        for before, now in renamed.items():
            assert f"| `{before}` | `{now}` |" in page


@pytest.mark.moderate
def test_a_dash_sends_the_result_alone_to_standard_output(tmp_path: Path) -> None:
    words = ("--trace", "demo", "--clip-s", "10", "--no-hindsight")
    done = run("pdplugins", "simulate", "stock-least-loaded", *words, "--json", "-")
    assert json.loads(done.stdout)["kind"] == "simulated"
    assert "SLO attainment" in done.stderr
    with (tmp_path / "out.json").open("w") as file:
        command = [*PDPLUGINS, "bound", *words[:4], "--json", "-"]
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, check=True)
    assert json.loads((tmp_path / "out.json").read_text())["kind"] == "bound"
    records = run("pdplugins", "simulate", "stock-least-loaded", *words, "--records", "-").stdout.splitlines()
    assert {"arrival_s", "ttft_s"} <= set(json.loads(records[0]))


@pytest.mark.moderate
def test_a_piped_table_is_whole() -> None:
    said = run("pdplugins", "plugins", COLUMNS="40").stdout
    names = [one["name"] for one in json.loads(run("pdplugins", "plugins", "--json").stdout)]
    assert len(names) > 40
    assert all(name in said for name in names)


@pytest.mark.moderate
def test_the_shell_completes_configs() -> None:
    asked = {"_PDPLUGINS_COMPLETE": "complete_bash", "COMP_WORDS": "pdplugins simulate stock-c", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['pdplugins']; from pdplugins.cli import main; main()"
    env = {**os.environ, **asked}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert set(done.stdout.split()) == {"stock-cache-aware", "stock-colocated", "stock-colocated-prefill-first"}


def test_a_policy_that_is_no_config_stands_for_one() -> None:
    assert config.named("least-loaded").router == config.Choice(name="least-loaded")
    assert config.named("dopd") == config.load(config.find("dopd"))


def test_what_is_nearly_right_is_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean stock-colocated\?"):
        config.named("stock-colocatd")
    with pytest.raises(ConfigError, match=r"did you mean dopd\?"):
        default_registry().get("planner", "dopdd")
    with pytest.raises(Exception, match=r"did you mean azure-like\?"):
        traces.read("azurelike")


@pytest.mark.parametrize("words", ["advise --trace demo --target nan", "simulate dopd --trace demo --rate inf"])
def test_what_is_no_finite_number_is_refused(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``nan`` is inside all bounds: no comparison with it is true."""
    monkeypatch.setattr(sys, "argv", ["pdplugins", *words.split()])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "is not a finite number" in said or "Invalid value for '--target'" in said, (
        "some click versions see it first"
    )
