"""Chaos: how long, which faults, which seed. `plan.py` says how to choose them."""

from __future__ import annotations

import os

import pytest

from tests.chaos.plan import Plan


@pytest.fixture
def plan() -> Plan:
    if "CHAOS_S" not in os.environ:
        pytest.skip("takes minutes: `make chaos` runs it")
    return Plan.from_environment()
