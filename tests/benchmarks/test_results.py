"""Every result says where it comes from, and is as young as the code that it measures."""

from __future__ import annotations

from pathlib import Path

import manifest
import pytest
import results

from tests.benchmarks.old_results import OLD

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in manifest.RESULTS.glob("*.json"))


def test_every_result_file_belongs_to_an_experiment_and_every_experiment_has_its_results() -> None:
    declared = {name for experiment in manifest.experiments() for name in experiment.results}
    assert set(NAMES) <= declared
    assert declared - set(NAMES) <= OLD


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OLD])
def test_a_result_says_how_it_was_made(name: str) -> None:
    assert manifest.flaws(manifest.read(name)) == []


@pytest.mark.moderate
def test_no_simulated_result_is_older_than_the_code_it_measures() -> None:
    """Each line says which result is out of date, what changed, and the command that makes it again."""
    assert [line for name, line in results.stale().items() if name not in OLD] == []


def test_every_module_of_pdplugins_is_in_a_part_or_said_to_matter_to_no_figure() -> None:
    parts, _ = manifest.declared()
    told = {path for part in parts for path in manifest.files_of(part)} | set(manifest.no_figure())
    assert sorted(str(path.relative_to(ROOT)) for path in set(ROOT.glob("pdplugins/**/*.py")) - told) == []


def test_what_a_command_of_pdplugins_wrote_gets_the_origin_of_its_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "RESULTS", tmp_path)
    experiment = manifest.experiment_of("decisions")
    results.adopt(experiment, {"kind": "measured", "seed": 7, "command": "pdplugins /of/this/machine", "rows": [1]})
    data = manifest.read("decisions")
    assert data["command"] == "pdplugins bench decisions --calls 1000 --json decisions.json"
    assert (data["kind"], data["seed"], data["rows"]) == ("measured", 7, [1])
    assert manifest.changed(experiment, data) == []


SOUND = {"kind": "simulated", "command": "p --traces DIR", "commit": "0" * 12, "versions": {}, "seed": None, "code": {}}


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"commit": "012345678901-dirty"}, "not that of clean code"),
        ({"commit": "0123456"}, "not that of clean code"),
        ({"runs": [{"commit": "012345678901-dirty"}]}, "not that of clean code"),
        ({"kind": "guessed"}, "neither measured nor simulated"),
        ({"command": "p --traces /home/me/traces"}, "a path of one machine"),
        ({"command": "p ~/traces"}, "a path of one machine"),
        ({"command": "p --json /dev/null --url http://127.0.0.1:1/x a/b"}, None),
        ({"runs": [{"command": "p --out=/tmp/x"}]}, "a path of one machine"),
    ],
)
def test_what_a_result_lacks_is_found(changes: dict[str, object], flaw: str | None) -> None:
    found = manifest.flaws({**SOUND, **changes})
    assert len(found) == bool(flaw)
    assert not flaw or flaw in found[0]


@pytest.mark.parametrize("key", SOUND)
def test_a_missing_field_is_found(key: str) -> None:
    assert f"no {key}" in manifest.flaws({name: value for name, value in SOUND.items() if name != key})


@pytest.mark.moderate
@pytest.mark.parametrize("experiment", manifest.experiments(), ids=lambda it: it.name)
def test_what_an_experiment_names_exists(experiment: manifest.Experiment) -> None:
    assert experiment.code().keys() >= set(experiment.parts)
    assert experiment.script is None or experiment.script.is_file()
