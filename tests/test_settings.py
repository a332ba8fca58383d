"""``key.inner=value``, as ``--set`` and the names of workloads take it."""

from __future__ import annotations

from typing import Any

import pytest

from pdplugins.errors import ConfigError
from pdplugins.settings import Setting, parse_setting, put, split_settings


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("interval_s=10", ("interval_s",), 10),
        ("deployment.prefill.tp=auto", ("deployment", "prefill", "tp"), "auto"),
        ("simulation.deaths=[{at_s: 2, worker: p0}]", ("simulation", "deaths"), [{"at_s": 2, "worker": "p0"}]),
        ("planner=", ("planner",), None),
        ("name=a=b", ("name",), "a=b"),
    ],
)
def test_a_dot_leads_into_a_section_and_the_value_is_yaml(text: str, path: tuple[str, ...], value: object) -> None:
    assert parse_setting(text) == Setting(path, value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("planner", "--set planner: write it as key=value"),
        ("=3", "--set =3: write it as key=value"),
        ("slo..ttft_s=3", "--set slo..ttft_s=3: write it as key=value"),
        ("slo=[", r"--set slo=\[: the value '\[' is not YAML"),
    ],
)
def test_what_is_no_setting_is_refused_in_one_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        parse_setting(text)
    assert "\n" not in str(raised.value)


def test_commas_inside_a_value_do_not_separate() -> None:
    text = "a=1,b.c=[1,[2,3]],d={e: 4, f: 'g,h]'},i=\"j,k\""
    assert list(split_settings(text)) == ["a=1", "b.c=[1,[2,3]]", "d={e: 4, f: 'g,h]'}", 'i="j,k"']
    assert list(split_settings("")) == []


def test_a_setting_makes_the_sections_that_lead_to_it_but_replaces_no_value_by_one() -> None:
    data: dict[str, Any] = {"planner": None, "slo": {"ttft_s": 1}}
    put(data, parse_setting("planner.name=dopd"))
    put(data, parse_setting("slo.tpot_s=2"))
    assert data == {"planner": {"name": "dopd"}, "slo": {"ttft_s": 1, "tpot_s": 2}}
    with pytest.raises(ConfigError, match=r"--set slo\.ttft_s\.x: ttft_s is a value, not a section"):
        put(data, parse_setting("slo.ttft_s.x=3"))
