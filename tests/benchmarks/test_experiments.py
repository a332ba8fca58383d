"""The pages of the published experiments say what the result files say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
RESULTS = [path for path in sorted(FOLDER.glob("results/*.json")) if "experiment" in json.loads(path.read_text())]

spec = importlib.util.spec_from_file_location("experiment", FOLDER / "experiment.py")
assert spec is not None
assert spec.loader is not None
experiment = importlib.util.module_from_spec(spec)
spec.loader.exec_module(experiment)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_page_has_the_table_of_the_result(path: Path) -> None:
    data = json.loads(path.read_text())
    paper, _, name = data["experiment"].partition(" ")
    page = (FOLDER / paper / "README.md").read_text()
    _, _, rest = page.partition(f"<!-- {name} -->")
    section, _, _ = rest.partition(f"<!-- /{name} -->")
    assert experiment.table(data["rows"]) in section
    assert data["published"] in section
    assert data["kind"] == "simulated"
    assert data["commit"] in section
    assert f"{paper}-{name}.svg" not in section or path.with_suffix(".svg").is_file()
