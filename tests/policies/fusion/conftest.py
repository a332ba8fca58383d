"""What the tests of fusion start from: a profile that can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pdplugins.contracts.bundle import Bundle
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.plugin import build
from pdplugins.testing import LinearModel, deployment
from pdplugins.types import Deployment

MODEL = LinearModel(
    prefill_fixed_s=0.02, prefill_token_s=1e-4, prefill_square_s=5e-9, decode_fixed_s=0.02, decode_request_s=1e-5,
    decode_token_s=1e-7, transfer_fixed_s=1e-3, kv_tokens=200_000,
)  # fmt: skip
"""20 ms to read the weights and 0.1 ms a prompt token: 2,048 tokens take a quarter of a second."""


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
