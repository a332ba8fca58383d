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


def test_no_simulated_result_is_older_than_the_code_it_measures() -> None:
    """Each line says which result is out of date, what changed, and the command that makes it again."""
    assert [line for name, line in results.stale().items() if name not in OLD] == []


def test_every_module_of_pdplugins_is_in_a_part_or_said_to_matter_to_no_figure() -> None:
    parts, _ = manifest.declared()
    told = {path for part in parts for path in manifest.files_of(part)} | set(manifest.no_figure())
    assert sorted(str(path.relative_to(ROOT)) for path in set(ROOT.glob("pdplugins/**/*.py")) - told) == []


@pytest.mark.parametrize("experiment", manifest.experiments(), ids=lambda it: it.name)
def test_what_an_experiment_names_exists(experiment: manifest.Experiment) -> None:
    assert experiment.code().keys() >= set(experiment.parts)
    assert experiment.script is None or experiment.script.is_file()
