"""What the tests of DynaServe start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplugins.types import Deployment
from tests.policies.dynaserve.model import Model, deployment_of


@pytest.fixture
def deployment() -> Deployment:
    return deployment_of(Model())


@pytest.fixture
def root() -> Path:
    return Path(__file__).parents[3]
