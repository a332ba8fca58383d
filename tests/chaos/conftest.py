"""Chaos: how long, which faults, which seed. `plan.py` says how to choose them."""

from __future__ import annotations

import pytest

from tests.chaos.plan import Plan


@pytest.fixture
def plan() -> Plan:
    return Plan.from_environment()
