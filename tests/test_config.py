"""The config file: whatever is wrong is one line that names the file, the key and the valid choices."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins import config
from pdplugins.errors import ConfigError
from tests.refusals import refusal


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", config.shipped())
def test_every_shipped_config_loads(name: str) -> None:
    loaded = config.load(config.find(name))
    assert loaded.planner or loaded.router or loaded.bundle


def test_a_plugin_may_be_named_in_short(tmp_path: Path) -> None:
    loaded = config.load(written(tmp_path, "planner: dopd"))
    assert loaded.planner is not None
    assert loaded.planner.name == "dopd"
    assert loaded.planner.settings == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "plannner: dopd",
            r"unknown key 'plannner'; valid keys here are batch_scheduler, bundle, decision_log, deployment, flow",
        ),
        ("deployment: {gpus: 3}", r"unknown key 'deployment.gpus'; valid keys here are decode, gpu_budget, isl_tokens"),
        (
            "simulation: {extra: [{role: decode, cout: 2}]}",
            r"'simulation.extra.0.cout'; valid keys here are count, profile, role, tp",
        ),
        ("slo: {ttft_s: 2, ttft_s: 3}", r"line 1, column 18: not YAML: key 'ttft_s' stands twice"),
        ("planner: dpod", r"planner: there is no 'dpod'; choose from .*dopd"),
        ("router: nobody", r"router: there is no 'nobody'; choose from"),
        ("planner: {name: dopd, intervall_s: 3}", r"planner dopd: unknown key 'intervall_s'; valid keys here are .*"),
        ("planner: {name: dopd, interval_s: -3}", r"planner dopd: interval_s: .*or equal to 0.01.* \(got -3\)"),
        ("slo: {ttft_s: .nan}", r"slo\.ttft_s: .*finite"),
        ("deployment: {max_batch: 65537}", r"deployment\.max_batch: .*less than or equal to 65536"),
        ("simulation: {frontend_s: 1e9}", r"simulation\.frontend_s: .*less than or equal to 60"),
        ("simulation: {late_step_s: 1e9}", r"simulation\.late_step_s: .*less than or equal to 60"),
        ("simulation: {late_step_token_s: 1}", r"simulation\.late_step_token_s: .*less than or equal to 0\.06"),
        ("simulation: {mixed_step_scale: 1e300}", r"simulation\.mixed_step_scale: .*less than or equal to 100"),
        ("slo: {ttft_s: fast}", r"slo\.ttft_s: .*valid number.* \(got 'fast'\)"),
        ("deployment: {prefill: {replicas: -1}}", r"deployment\.prefill\.replicas: .*greater than or equal to 0"),
        (
            "deployment: {prefill: {replicas: 0}}",
            r": deployment\.prefill\.replicas: 0 leaves nobody to prefill; let it",
        ),
        (
            "{simulation: {flip: label}, deployment: {prefill: {replicas: 0}, decode: {replicas: 0}}}",
            r": deployment\.prefill\.replicas: 0 leaves nobody",
        ),
        ("flow: nobody", r"flow: there is no 'nobody'; choose from"),
        ("bundle: nobody", r"bundle: there is no 'nobody'; choose from"),
        ("deployment: {decode: {tp: 0}}", r"deployment\.decode: .*tp must be at least 1"),
        ("deployment: {startup_s: .inf}", r"deployment\.startup_s: .*finite|less than"),
        ("deployment: {startup_s: 1.0e+300}", r"deployment\.startup_s: .*less than or equal to 1000000000"),
        ("slo: {ttft_s: 1.0e+300}", r"slo\.ttft_s: .*less than or equal to 1000000000"),
        ("simulation: {deaths: [{at_s: 1.0e+300, worker: p0}]}", r"simulation\.deaths\.0\.at_s: .*less than or equal"),
        ("deployment: {gpu_budget: 1000000000000}", r"deployment\.gpu_budget: .*less than or equal to 65536"),
        (
            "simulation: {extra: [{role: decode, count: 1000000000000}]}",
            r"simulation\.extra\.0\.count: .*less than or equal to 65536",
        ),
        ("[1, 2]", r"file: .*"),
        ("a: [", r"not YAML"),
    ],
)
def test_a_bad_file_is_one_line_with_the_choices(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_lists_what_is_shipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*shipped configs are .*dopd"):
        config.load(tmp_path / "none.yaml")


def test_a_shipped_config_is_found_by_its_name() -> None:
    assert config.find("dopd").is_file()


def test_a_folder_with_the_name_of_a_shipped_config_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dopd").mkdir()
    (tmp_path / "mine").write_text("planner: static")
    monkeypatch.chdir(tmp_path)
    assert config.find("dopd").is_file()
    assert config.find("mine") == Path("mine")


SECTIONS = st.sampled_from([*config.Config.model_fields, "x"])
INNER = st.sampled_from(["name", "gpu_budget", "profile", "prefill", "tp", "ttft_s", "max_body_mib", "interval_s", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["dopd", "arrow"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(INNER, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.moderate
@given(st.dictionaries(SECTIONS, VALUES, max_size=4) | VALUES)
def test_any_data_is_a_config_or_an_error_in_one_line(data: object) -> None:
    said = refusal(lambda: config.parse(data))
    assert "\n" not in said
    assert len(said) < 1000
