"""A log that several files of tests read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdplugins.types import PlannerView
from tests.runtime.decision_logs import mixed_log


@pytest.fixture
def mixed(tmp_path: Path, config_data: dict[str, Any], see: Callable[..., PlannerView]) -> Path:
    """A log of one process with a policy of each kind."""
    mixed_log(tmp_path / "mixed.jsonl", config_data, see)
    return tmp_path / "mixed.jsonl"
