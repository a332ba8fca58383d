"""docs/workloads.md names every workload, every setting and every shipped file, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from pdplugins.registry import default_registry
from pdplugins.workloads import arrivals, sources, traces
from pdplugins.workloads.synthetic import Phase, Sessions, SyntheticSettings, synthetic

PAGE = (Path(__file__).parents[2] / "docs/workloads.md").read_text()
OURS = [r for r in default_registry().registrations() if r.kind == "workload" and r.plugin.name == "workloads"]


def test_every_workload_and_shipped_file_is_named() -> None:
    assert len(OURS) == 7
    assert all(f"`{name}`" in PAGE for name in [*(r.name for r in OURS), *sources.shipped()])


def test_every_setting_is_named_and_described() -> None:
    kinds = get_args(get_args(arrivals.Arrivals)[0])
    for model in [*(r.settings for r in OURS), Phase, Sessions, *kinds]:
        for name, field in model.model_fields.items():
            assert re.search(rf"\b{name}\b", PAGE), (model, name)
            assert field.description or name in {"kind", "rate"}, (model, name)


def test_the_workload_of_the_page_can_be_made() -> None:
    example = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "phases" in text)
    made = list(synthetic(SyntheticSettings.model_validate({**yaml.safe_load(example), "requests": 20})))
    assert len(made) == 40


@pytest.mark.moderate
@pytest.mark.parametrize("name", re.findall(r"--trace '?((?:synthetic|rapid-two-phase):[^\s']+)", PAGE))
def test_the_commands_of_the_page_name_workloads_that_exist(name: str) -> None:
    assert traces.read(name)
