"""The classes that docs/writing-a-plugin.md shows whole are policies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pdplugins import types
from pdplugins.testing import deployment
from pdplugins.testing.policies import BatchSchedulerConformance, PowerConformance

PAGE = (Path(__file__).parents[1] / "docs/writing-a-plugin.md").read_text(encoding="utf-8")


class ShortFirstSettings(BaseModel, extra="forbid"):
    step_tokens: int = 8192


class EvenSettings(BaseModel, extra="forbid"):
    budget_w: float = 2400.0


def shown(name: str) -> Any:
    """The class of the page called `name`."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"class {name}:" in block)
    names: dict[str, Any] = {**vars(types), **globals()}
    exec(code, names)  # noqa: S102 - our own page
    return names[name]


class TestShortFirst(BatchSchedulerConformance):
    def make(self) -> types.BatchScheduler:
        made: types.BatchScheduler = shown("ShortFirst")(ShortFirstSettings(), deployment())
        return made


class TestEven(PowerConformance):
    def make(self) -> types.PowerController:
        made: types.PowerController = shown("Even")(EvenSettings(), deployment())
        return made


@pytest.mark.parametrize("kind", ["planner", "router", "flow policy", "batch scheduler", "power controller", "bundle"])
def test_the_page_has_every_kind(kind: str) -> None:
    assert f"### A {kind}\n" in PAGE
