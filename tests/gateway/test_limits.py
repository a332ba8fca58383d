"""The limits: one table in the docs, one section of the config, options that change it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.gateway.command import changed_limits
from pdplugins.limits import GatewayConfig
from tests.gateway.rig import config

PAGE = Path(__file__).parents[2] / "docs/limits.md"


def shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def test_the_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    fields = GatewayConfig.model_fields
    keys, fixed = rows[: len(fields)], rows[len(fields) :]
    assert keys == [(name, shown(field.default), field.description) for name, field in fields.items()]
    assert [(place, value) for place, value, _ in fixed] == [(place, shown(constant(place))) for place, *_ in fixed]
    assert len(fixed) > 10


def constant(place: str) -> object:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"pdplugins.gateway.{module}"), name)


def test_options_take_precedence_over_the_file() -> None:
    cfg = config(gateway={"head_s": 3, "retries": 1, "poll_s": 7})
    changed = changed_limits(cfg, {"retries": 0, "poll_s": None}, ["head_s=4", "max_requests=5"]).gateway
    assert (changed.head_s, changed.retries, changed.poll_s, changed.max_requests) == (4, 0, 7, 5)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("head_s=0", r"gateway\.head_s: .*greater than 0"),
        ("head_s=.inf", r"gateway\.head_s: .*finite"),
        ("max_requests=0", r"gateway\.max_requests"),
        ("retry_share=2", r"gateway\.retry_share"),
        ("most=1", r"unknown key 'gateway\.most'; valid keys here are access_log, .*write_s"),
        ("head_s", "key=value"),
    ],
)
def test_a_limit_that_is_none_is_one_line(setting: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        changed_limits(config(), {}, [setting])
