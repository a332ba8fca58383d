"""The config file: whatever is wrong is one line that names the file, the key and the valid choices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins import config
from pdplugins.contracts.register import NoSettings
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
        ("planner: {name: dopd, interval_s: -3}", r"planner dopd: interval_s: .*at least 0.01.* \(got -3\)"),
        ("slo: {ttft_s: .nan}", r"slo\.ttft_s: .*finite"),
        ("deployment: {max_batch: 65537}", r"deployment\.max_batch: .*at most 65536"),
        ("simulation: {frontend_s: 1e9}", r"simulation\.frontend_s: .*at most 60"),
        ("simulation: {late_step_s: 1e9}", r"simulation\.late_step_s: .*at most 60"),
        ("simulation: {late_step_token_s: 1}", r"simulation\.late_step_token_s: .*at most 0\.06"),
        ("simulation: {mixed_step_scale: 1e300}", r"simulation\.mixed_step_scale: .*at most 100"),
        ("slo: {ttft_s: fast}", r"slo\.ttft_s: must be a number \(got 'fast'\)"),
        ("deployment: {prefill: {replicas: -1}}", r"deployment\.prefill\.replicas: .*at least 0"),
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
        ("deployment: {startup_s: .inf}", r"deployment\.startup_s: .*finite"),
        ("deployment: {startup_s: 1.0e+300}", r"deployment\.startup_s: .*at most 1000000000"),
        ("slo: {ttft_s: 1.0e+300}", r"slo\.ttft_s: .*at most 1000000000"),
        ("simulation: {deaths: [{at_s: 1.0e+300, worker: p0}]}", r"simulation\.deaths\.0\.at_s: .*at most"),
        ("deployment: {gpu_budget: 1000000000000}", r"deployment\.gpu_budget: .*at most 65536"),
        (
            "simulation: {extra: [{role: decode, count: 1000000000000}]}",
            r"simulation\.extra\.0\.count: .*at most 65536",
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slo: fast", "slo: must be keys with values; valid keys here are tpot_s, ttft_s (got 'fast')"),
        ("slo:", "slo: must be keys with values; valid keys here are tpot_s, ttft_s (got nothing)"),
        ("slo: {1: 2}", "slo.1: the key must be a text; put it in quotes (got 1)"),
        ("slo: {ttft_s: .nan}", "slo.ttft_s: must be a finite number (got nan)"),
        ("slo: {ttft_s: 0}", "slo.ttft_s: must be above 0 (got 0)"),
        ("deployment: {gpu_budget: 2.5}", "deployment.gpu_budget: must be a whole number (got 2.5)"),
        ("deployment: {gpu_budget: 1.0e+300}", "deployment.gpu_budget: must be a smaller whole number (got 1e+300)"),
        ("deployment: {decode: {tp: many}}", "deployment.decode.tp: must be a whole number or 'auto' (got 'many')"),
        ("deployment: {decode: {tp: 0}}", "deployment.decode: tp must be at least 1, or auto (got {'tp': 0})"),
        ("deployment: {profile: true}", "deployment.profile: must be a text (got true)"),
        ("simulation: {order: 3}", "simulation.order: must be 'decode_first' or 'prefill_first' (got 3)"),
        ("simulation: {overlap: maybe}", "simulation.overlap: must be true or false (got 'maybe')"),
        ("simulation: {deaths: 3}", "simulation.deaths: must be a list (got 3)"),
        ("simulation: {deaths: [{at_s: 3}]}", "simulation.deaths.0.worker: must be given"),
        ("simulation: {watermark: 1}", "simulation.watermark: must be below 1 (got 1)"),
        ("signals: {folder: 3}", "signals.folder: must be a path (got 3)"),
        ("terms: {ttft_s: [1]}", "terms.ttft_s.1: must be given"),
        ("terms: {ttft_s: [1, 2, 3]}", "terms.ttft_s: must have 2 or fewer entries (got [1, 2, 3])"),
        ("terms: {ttft_s: [2, 1]}", "terms.ttft_s: 2 is above 1; give the smaller one first (got [2, 1])"),
        ("terms: {tenants: {1: 2}}", "terms.tenants.1: the key must be a text (got 1)"),
        ("terms: {tenants: [a]}", "terms.tenants: must be keys with values (got ['a'])"),
        ("node: {workers: [{worker: a, gpus: []}]}", "node.workers.0.gpus: must have 1 or more entries (got [])"),
        (
            "planner: [dopd]",
            "planner: must be the name of a plugin, or keys with values, of which one is the name (got ['dopd'])",
        ),
        ("planner: {interval_s: 1}", "planner.name: must be given"),
        ("planner: {name: dopd, interval_s: a}", "planner dopd: interval_s: must be a number (got 'a')"),
    ],
)
def test_what_is_expected_is_said_in_plain_words(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    assert refusal(lambda: config.load(path)) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("slo: {ttft_s: true}", "slo.ttft_s"),
        ("slo: {ttft_s: false}", "slo.ttft_s"),
        ("deployment: {gpu_budget: true}", "deployment.gpu_budget"),
        ("deployment: {prefill: {replicas: true}}", "deployment.prefill.replicas"),
        ("deployment: {decode: {tp: true}}", "deployment.decode.tp"),
        ("simulation: {deaths: [{at_s: 1, worker: p0}, {at_s: true, worker: d0}]}", "simulation.deaths.1.at_s"),
        ("terms: {ttft_s: [true, 2]}", "terms.ttft_s.0"),
        ("terms: {tenants: {a: true}}", "terms.tenants.a"),
        ("planner: {name: dopd, interval_s: true}", "planner dopd: interval_s"),
        ("router: {name: ampd, seed: false}", "router ampd: seed"),
    ],
)
def test_true_and_false_are_no_numbers(tmp_path: Path, text: str, key: str) -> None:
    path, value = written(tmp_path, text), "false" if "false" in text else "true"
    assert refusal(lambda: config.load(path)) == f"{path}: {key}: must be a number (got {value})"


def test_whole_numbers_are_numbers_and_true_is_true(tmp_path: Path) -> None:
    loaded = config.load(written(tmp_path, "slo: {ttft_s: 2}\nsimulation: {overlap: true}"))
    assert (loaded.slo.ttft_s, loaded.simulation.overlap) == (2.0, True)


def test_a_plugin_that_has_no_settings_has_no_valid_keys_to_tell() -> None:
    with pytest.raises(ConfigError, match=r"^here: unknown key 'seed'; there are no keys here$"):
        config.checked(NoSettings, {"seed": 3}, "here")


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


@pytest.mark.parametrize("name", ["mine", "./mine", "mine/", "mine.yaml", "."])
def test_a_folder_is_no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(exist_ok=True)
    said = rf"^{Path(name)}: is a folder; name a config file in it, or a shipped config: ampd, .*dopd"
    for read in (lambda: config.load(config.find(name)), lambda: config.named(name)):
        with pytest.raises(ConfigError, match=said):
            read()


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
    assert not re.search("Input|Field|Value error|Keys should|Tuple", said), "words of pydantic"
