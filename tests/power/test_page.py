"""docs/power.md has every key, and its config and its unit work."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pdplugins.config import NodeConfig, parse
from pdplugins.contracts.power import FIXES
from pdplugins.types import DeviceFault

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/power.md").read_text()


def test_every_key_is_on_the_page_and_explained() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    missing = [name for name in NodeConfig.model_fields if not any(f"`{name}`" in row for row in rows)]
    assert missing == []
    assert all(field.description for field in NodeConfig.model_fields.values())


@pytest.mark.parametrize("block", [text.split("```")[0] for text in PAGE.split("```yaml\n")[1:]])
def test_the_configs_of_the_page_are_configs(block: str) -> None:
    parse(yaml.safe_load(block))


def test_dangers_come_first() -> None:
    headings = [line for line in PAGE.splitlines() if line.startswith("## ")]
    assert headings[0] == "## Dangers first"


def test_the_unit_starts_what_there_is() -> None:
    unit = (ROOT / "docs/pdplugins-power.service").read_text()
    assert "power run --config /etc/pdplugins/node.yaml --dry-run" in unit
    assert "StateDirectory=pdplugins/power" in unit
    assert str(NodeConfig().state) == "/var/lib/pdplugins/power"


@pytest.mark.parametrize("key", ["ProtectClock", "PrivateDevices", "DevicePolicy", "DeviceAllow"])
def test_the_unit_hides_no_device_files_of_gpus(key: str) -> None:
    """ProtectClock allows but a few devices before systemd 253."""
    unit = (ROOT / "docs/pdplugins-power.service").read_text()
    assert not any(line.startswith(key) for line in unit.splitlines())


def test_every_fault_has_a_fix() -> None:
    assert set(FIXES) == set(DeviceFault)
