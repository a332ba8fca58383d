"""Profile files: what is wrong with one is one line that names the file and the field."""

from __future__ import annotations

import codecs
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pdplugins import config
from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.registry import NoSettings, default_registry
from pdplugins.resources import data_dir
from pdplugins.runtime.assembly import build_deployment
from pdplugins.types import Role

POWER = {
    "cap_w": [300, 400, 700],
    "prefill_slow": [1.8, 1.4, 1],
    "decode_slow": [1.2, 1, 1],
    "settle_s": 0.3,
    "idle_w": 100,
    "prefill_w": 700,
    "decode_w": 500,
    "source": "test",
}
TABLE_1 = data_dir("profiles") / "h100" / "llama-70b-fp8-dopd-table-1.json"


def changed(tmp_path: Path, where: str, value: Any) -> Path:
    """Return a copy of the Table I profile with one field set (or, for None, left out)."""
    data = copy.deepcopy(json.loads(TABLE_1.read_text()))
    *parents, last = where.split(".")
    part = data
    for key in parents:
        part = part[key]
    if value is None:
        del part[last]
    else:
        part[last] = value
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("path", sorted(data_dir("profiles").glob("*/*.json")), ids=lambda path: path.stem)
def test_every_shipped_profile_loads_under_its_name(path: Path) -> None:
    registration = default_registry().get("profile", f"{path.parent.name}/{path.stem}")
    perf = registration.factory(NoSettings())
    for role in Role:
        assert perf.tp_sizes(role)
    assert read_profile(path).provenance.source


def test_the_modelled_profile_records_what_it_was_scaled_by() -> None:
    profile = read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json")
    assert profile.kind == "modelled"
    assert "aiconfigurator 0.7.0" in profile.provenance.source
    assert "from-aiconfigurator" in profile.provenance.command
    for phase, points in profile.scale.points.items():
        mean = sum(point["reference_ms"] / point["raw_ms"] for point in points) / len(points)
        assert getattr(profile.scale, phase) == pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("schema", 2, "schema"),
        ("colour", "red", "unknown key 'colour'; valid keys here are bandwidth"),
        ("memory.gpu_bytes", -1, r"memory\.gpu_bytes: .*at least 1e-09"),
        ("memory.gpu_bytes", 1e308, r"memory\.gpu_bytes: .*at most"),
        ("memory.kv_bytes_per_token", 1e-308, r"memory\.kv_bytes_per_token: .*at least"),
        ("transfer.latency_s", 1e308, r"transfer\.latency_s: .*at most"),
        ("transfer.latency_s", 61.0, r"transfer\.latency_s: .*at most 60"),
        ("prefill.1.raw_ms", [1, 2, 3, 4, 1e7], r"prefill\.1\.raw_ms\.4: .*at most 1000000"),
        ("prefill", {"0": {"tokens": [1, 2], "raw_ms": [1, 2]}}, r"prefill\.0.*at least 1"),
        ("prefill", {"1" + 309 * "0": {"tokens": [1, 2], "raw_ms": [1, 2]}}, r"prefill\.1000.*at most"),
        ("speculation", {"draft_tokens": 10**12, "acceptance": 0.5, "draft_share": 0}, r"draft_tokens: .*at most 64"),
        ("scale.prefill", 1e308, r"scale\.prefill: .*at most"),
        ("memory.kv_bytes_per_token", None, r"memory\.kv_bytes_per_token: must be given"),
        ("bandwidth.utilisation", 1.5, r"bandwidth\.utilisation"),
        ("prefill.1.tokens", [100, 90, 700, 1200, 1700], r"prefill\.1: .*tokens must ascend"),
        ("prefill.1.raw_ms", [1, 2], r"prefill\.1: .*2 values for 5 tokens"),
        ("decode.2.batch", [1, 2], r"decode\.2: .*2 rows of 5 values"),
        ("decode", {}, r"decode: .*must have 1 or more entries"),
        ("dense", {"2": {"tokens": [1, 2], "raw_ms": [1, 2]}}, r"dense has TP 2, which prefill lacks"),
        ("scale.step_ms", -1, r"scale\.step_ms"),
        ("power", POWER | {"prefill_slow": [1.8]}, r"power: .*prefill_slow has 1 values for 3 caps"),
        ("power", POWER | {"decode_slow": [1.2, 1.3, 1]}, r"power: .*decode_slow must not rise"),
        ("power", POWER | {"cap_w": [400, 300, 700]}, r"power: .*cap_w must ascend"),
        ("power", POWER | {"decode_slow": [1, 1, 0.9]}, r"power\.decode_slow"),
        ("power", POWER | {"prefill_slow": [1e18, 1, 1]}, r"power\.prefill_slow\.0: .*at most 1000"),
        ("speculation", {"draft_tokens": 1, "acceptance": 1, "draft_share": 1e9}, r"draft_share: .*at most 100"),
        ("transfer.bytes_per_s", 1e-9, r"transfer\.bytes_per_s: .*at least 1"),
    ],
)
def test_a_bad_profile_is_one_line(tmp_path: Path, where: str, value: Any, message: str) -> None:
    path = changed(tmp_path, where, value)
    with pytest.raises(ConfigError, match=message) as caught:
        read_profile(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"profile {path}")


def test_a_byte_order_mark_is_no_part_of_a_profile(tmp_path: Path) -> None:
    """Some editors write one."""
    path = changed(tmp_path, "schema", 1)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_profile(path)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = changed(tmp_path, "schema", 1)
    path.write_text(path.read_text().replace('"raw_ms"', '"raw_ms": [9, 9], "raw_ms"', 1))
    with pytest.raises(ConfigError, match=r"mine\.json: key 'raw_ms' stands twice; keep one of them"):
        read_profile(path)


def test_a_time_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = changed(tmp_path, "prefill.1.raw_ms", [1, 2, float("nan"), 3, 4])
    with pytest.raises(ConfigError, match=r"mine\.json: "):
        read_profile(path)


def test_a_missing_file_and_one_that_is_not_json_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(ConfigError, match=r"text\.json: file: .*JSON"):
        read_profile(tmp_path / "text.json")


def test_a_config_may_name_a_profile_of_its_own_by_path() -> None:
    deployment = build_deployment(config.parse({"deployment": {"profile": str(TABLE_1)}}))
    assert deployment.perf.prefill_s(1200, 1) == pytest.approx(0.193)


def test_an_unknown_profile_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match=r"profile: there is no 'h100/gpt-9'; choose from .*h100/llama-3\.1-70b-fp8"):
        build_deployment(config.parse({"deployment": {"profile": "h100/gpt-9"}}))
