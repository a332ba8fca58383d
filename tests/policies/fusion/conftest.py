"""What the tests of fusion start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdplugins.contracts.bundle import Bundle
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.plugin import build
from pdplugins.testing import deployment
from pdplugins.types import Deployment
from tests.policies.fusion.model import MODEL


@pytest.fixture
def made_for() -> Deployment:
    return deployment(MODEL, any_role=True)


@pytest.fixture
def core(made_for: Deployment) -> Callable[..., Core]:
    return lambda **settings: Core(FusionSettings(**settings), made_for)


@pytest.fixture
def bundle(made_for: Deployment) -> Callable[..., Bundle]:
    def of(*, any_role: bool = True, **settings: Any) -> Bundle:
        return build(FusionSettings(**settings), deployment(MODEL, any_role=any_role))

    return of
