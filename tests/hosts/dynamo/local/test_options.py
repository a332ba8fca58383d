"""What the user may ask for, and the one line that says what is wrong otherwise."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdplugins.cli import dynamo_app
from pdplugins.config import bundle_settings, find, load
from pdplugins.errors import ConfigError, HostError, PdpluginsError, TraceError
from pdplugins.hosts.dynamo.local.options import (
    check_engine,
    check_router,
    check_writable,
    live_replay,
    not_driven,
    pick_config,
    pick_port,
)
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.planner import build_safe_planner
from pdplugins.runtime.policies import build_policies
from pdplugins.settings import Setting
from tests.hosts.dynamo.local.made import options


def test_options_go_over_the_config_file(tmp_path: Path) -> None:
    """Planner, pools and start-up of the command line win; everything else stays the file's."""
    path = tmp_path / "mine.yaml"
    path.write_text("slo: {ttft_s: 1}\ndeployment: {prefill: {replicas: 2, tp: 2}}\nplanner: {name: dopd, hold_s: 9}\n")
    config = pick_config("dopd", str(path), None, 3, 2.0)
    assert config.slo.ttft_s == 1
    assert (config.deployment.prefill.replicas, config.deployment.prefill.tp) == (2, 2)
    assert config.deployment.decode.replicas == 3
    assert config.deployment.startup_s == 2.0
    assert config.planner is not None
    assert config.planner.settings == {"hold_s": 9}


def test_the_planner_option_replaces_another_planner_and_its_settings(tmp_path: Path) -> None:
    """Settings of one planner mean nothing to another."""
    path = tmp_path / "mine.yaml"
    path.write_text("planner: {name: dopd, hold_s: 9}\n")
    planner = pick_config("static", str(path), None, None, 2.0).planner
    assert planner is not None
    assert (planner.name, planner.settings) == ("static", {})


def test_without_a_file_the_shipped_one_of_the_planner_is_used() -> None:
    """``--planner dopd`` alone is enough, and so is nothing at all."""
    assert pick_config("dopd", None, None, None, 2.0) == pick_config(None, None, None, None, 2.0)


def test_a_config_without_a_planner_is_refused(tmp_path: Path) -> None:
    """There is nothing to serve without one."""
    path = tmp_path / "none.yaml"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="no planner; add --planner NAME"):
        pick_config(None, str(path), None, None, 2.0)


@pytest.mark.parametrize("engine", ["trtllm", "vllm", "abacus"])
def test_an_engine_that_cannot_be_started_is_refused(engine: str) -> None:
    """With the ones that can."""
    with pytest.raises(ConfigError, match=f"--engine {engine}: .*mocker"):
        check_engine(engine)


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    """And 0 finds a free one."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(HostError, match="is in use; choose another with --port"):
            pick_port("127.0.0.1", other.getsockname()[1])
    assert pick_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ((None, 10.0, 1.0, None), ConfigError, "--clip-s is about a replay; add --trace"),
        ((None, None, 2.0, None), ConfigError, "--speed is about a replay"),
        ((None, None, 1.0, Path("r.json")), ConfigError, "--json is about a replay"),
        ((None, None, 1.0, None, Path("r.html")), ConfigError, "--html is about a replay"),
        (("no/such.csv", None, 1.0, None), TraceError, "no such trace"),
    ],
)
def test_a_replay_that_makes_no_sense_is_refused(
    options: tuple[object, ...], error: type[PdpluginsError], message: str
) -> None:
    """One line that says what to do."""
    with pytest.raises(error, match=message) as raised:
        live_replay(*options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_duration_counts_in_seconds_of_the_trace(waves: Callable[..., Path]) -> None:
    """At double speed, 10 s of trace are 5 s of replay and just as many requests."""
    trace = str(waves((5, 20)))
    slow, fast = live_replay(trace, 10.0, 1.0, None), live_replay(trace, 10.0, 2.0, None)
    assert slow is not None
    assert fast is not None
    assert 20 < slow.total == fast.total < 80
    assert [2 * r.arrival_s for r in fast.requests] == pytest.approx([r.arrival_s for r in slow.requests])


def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """After an hour of replay is too late."""
    for bad in (tmp_path, tmp_path / "no" / "report.json"):
        with pytest.raises(ConfigError, match=r"--json .*: cannot write there"):
            check_writable("--json", bad)
    check_writable("--json", tmp_path / "report.json")
    check_writable("--json", None)


def test_every_option_has_a_help_text() -> None:
    """``dynamo serve --help`` explains itself and needs no Dynamo for it."""
    result = CliRunner().invoke(dynamo_app, ["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    for option in (
        "--planner",
        "--router",
        "--config",
        "--engine",
        "--prefill",
        "--decode",
        "--port",
        "--trace",
        "--json",
        "--gpus",
        "--set",
    ):
        line = next(line for line in result.output.splitlines() if f" {option} " in line)
        assert len(line.split()) > 6, line


def test_settings_of_the_command_line_are_over_the_file() -> None:
    """Any key of the config; what does not fit is refused as in a file."""
    given = [Setting(("deployment", "gpu_budget"), 16), Setting(("planner", "hold_s"), 7)]
    found = pick_config("dopd", None, None, None, 2.0, settings=given)
    assert found.deployment.gpu_budget == 16
    assert found.planner is not None
    assert found.planner.settings["hold_s"] == 7
    with pytest.raises(ConfigError, match=r"unknown key 'deployment\.gpus'"):
        pick_config("dopd", None, None, None, 2.0, settings=[Setting(("deployment", "gpus"), 16)])


@pytest.mark.parametrize("seconds", [30, 60])
@pytest.mark.parametrize("path", [("deployment", "startup_s"), ("deployment",)])
def test_a_start_up_time_is_not_replaced_without_a_word(path: tuple[str, ...], seconds: int) -> None:
    """Also that of the file."""
    value = seconds if len(path) == 2 else {"startup_s": seconds}
    with pytest.raises(ConfigError, match=f"give --startup {seconds}"):
        pick_config("dopd", None, None, None, 2.0, settings=[Setting(path, value)])


def test_what_this_host_does_not_drive_is_said(tmp_path: Path) -> None:
    """A file written for another host runs here, and says what of it Dynamo decides itself."""
    path = tmp_path / "mine.yaml"
    path.write_text("planner: dopd\nrouter: least-loaded\n")
    (line,) = not_driven(pick_config(None, str(path), None, None, 2.0))
    assert line == "router least-loaded: Dynamo's own routing is used; --router NAME changes that"
    assert not_driven(pick_config(None, str(path), None, None, 2.0, "least-loaded"), routed=True) == []
    path.write_text("planner: dopd\n")
    assert not_driven(pick_config(None, str(path), None, None, 2.0)) == []
    assert len(not_driven(pick_config("dopd", None, None, None, 2.0))) == 2, "its router and its batch scheduler"
    (line,) = not_driven(pick_config("dopd", None, None, None, 2.0, "dopd"), routed=True)
    assert line == "batch_scheduler dopd: not driven by the local launcher; Dynamo's own is used"


@pytest.mark.parametrize("router", ["arrow", "ampd", "dynaserve", "dopd", "fusion"])
def test_a_router_brings_its_config_and_needs_no_planner(router: str) -> None:
    """Without one the pools stay as they are; another one may come with it."""
    config = pick_config(None, None, None, 1, 2.0, router)
    check_router(config, build_deployment(config))
    chosen = config.router or config.bundle
    assert chosen is not None
    assert chosen.name == router
    assert config.planner is not None
    if router == "dopd":
        assert config.planner.name == "dopd"
    else:
        pools = {"prefill": config.deployment.prefill.replicas, "decode": 1}
        assert (config.planner.name, config.planner.settings) == ("static", pools)
    assert build_safe_planner(pick_config("threshold", None, None, None, 2.0, router)).interval_s > 0


@pytest.mark.parametrize(("path", "router"), [(None, "fusion"), (None, None), ("arrow", "arrow"), ("own", "fusion")])
def test_the_planner_of_a_bundle_scales(tmp_path: Path, path: str | None, router: str | None) -> None:
    """With its router from one set of settings, or beside another one; a file's settings of it stay."""
    own = tmp_path / "mine.yaml"
    own.write_text("bundle: {name: fusion, hold_s: 60}\nsimulation: {flip: label}\n")
    config = pick_config("fusion", str(own) if path == "own" else path, None, None, 2.0, router)
    policies = build_policies(config, build_deployment(config))
    assert type(policies.planner()).__name__ == "FusionPlanner"
    assert policies.router() is not None
    settings = bundle_settings(config, "fusion").model_dump()
    assert (settings["scale"], settings["hold_s"]) == (True, 60.0 if path == "own" else 300.0)


def test_a_bundle_that_scales_keeps_its_planner_beside_its_router(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for scale, planner in (("true", "fusion"), ("false", "static")):
        path.write_text(f"bundle: {{name: fusion, scale: {scale}}}\nsimulation: {{flip: label}}\n")
        picked = pick_config(None, str(path), None, None, 2.0, "fusion").planner
        assert picked is not None
        assert picked.name == planner


def checked(path: str, router: str) -> None:
    config = pick_config(None, path, None, None, 2.0, router)
    check_router(config, build_deployment(config))


def test_a_router_that_the_workers_cannot_serve_is_refused() -> None:
    """With what to change."""
    for path, router, message in (
        ("dopd", "arrow", "it moves workers between roles, and these keep theirs; let .* 'simulation: {flip: label}'"),
        ("dopd", "nobody", "nobody"),
    ):
        with pytest.raises(ConfigError, match=message):
            checked(path, router)


def test_workers_that_do_both_phases_have_one_size(tmp_path: Path) -> None:
    """Any of them may get any request."""
    path = tmp_path / "mine.yaml"
    path.write_text("simulation: {flip: label}\ndeployment: {prefill: {tp: 1}, decode: {tp: 2}}\n")
    config = pick_config(None, str(path), None, None, 2.0, "arrow")
    with pytest.raises(ConfigError, match="have one tp; prefill has 1 and decode 2"):
        check_router(config, build_deployment(config))


@pytest.mark.parametrize("port", [0, 8000])
@pytest.mark.parametrize("host", ["", "203.0.113.1", "a" * 300, "no such host", "host.invalid"])
def test_a_host_that_cannot_be_listened_on_is_one_line(host: str, port: int) -> None:
    with pytest.raises(PdpluginsError, match=r"^--host: (say which|cannot listen on .*is no address of)") as caught:
        pick_port(host, port)
    assert str(caught.value).isprintable()


def test_an_ipv6_endpoint_has_brackets() -> None:
    made = options(config=load(find("dopd")), host="::1")
    assert made.url == "http://[::1]:8000"
