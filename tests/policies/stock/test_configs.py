"""The stock configs and their page: like with like, and every setting explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplugins import config
from pdplugins.registry import default_registry

PAGE = Path(__file__).parents[3] / "docs/policies/stock.md"
STOCK = [name for name in config.shipped() if name.startswith("stock-")]


@pytest.mark.parametrize("name", STOCK)
def test_every_stock_config_has_the_same_gpus_profile_and_slo(name: str) -> None:
    checked, default = config.load(config.find(name)), config.Config()
    assert checked.slo == default.slo
    assert (checked.deployment.profile, checked.deployment.gpu_budget) == (default.deployment.profile, 8)
    assert f"`{name}`" in PAGE.read_text()


def test_every_setting_of_a_stock_policy_is_on_its_page() -> None:
    text = PAGE.read_text()
    stock = [r for r in default_registry().registrations() if r.plugin.name == "stock"]
    assert {r.name for r in stock} >= {"static", "threshold", "round-robin", "cache-aware"}
    for registration in stock:
        assert f"`{registration.name}`" in text
        assert all(f"`{name}`" in text for name in registration.settings.model_fields)
        assert all(field.description for field in registration.settings.model_fields.values())
