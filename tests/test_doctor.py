"""`pdplugins doctor` finds each thing that is not as recorded, and says what to do."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import pdplugins
from pdplugins import doctor, extras
from pdplugins.hosts import seams
from pdplugins.registry import Registry
from pdplugins.sim import kernel
from tests.refusals import refusal

HOST: dict[str, Any] = {
    "host": "pdplugins",
    "distribution": "pdplugins",
    "versions": ">=0.1,<1",
    "tested": ["0.1.0"],
}
TYPES = Path(pdplugins.__file__).parent / "types.py"
SHA = hashlib.sha256(TYPES.read_bytes()).hexdigest()


def check(kind: str, **seam: Any) -> seams.Check:
    """The last check of a host with this one seam."""
    return list(seams.examine_host(HOST | {kind: [{"why": "test", **seam}]}))[-1]


@pytest.mark.parametrize(
    ("kind", "seam"),
    [
        ("symbol", {"name": "pdplugins.types.ScalePlan", "takes": ["prefill", "decode", "reason"]}),
        ("symbol", {"name": "pdplugins.types.Role", "has": ["PREFILL"]}),
        ("symbol", {"name": "pdplugins.types.Role.PREFILL", "value": "prefill"}),
        ("symbol", {"name": "pdplugins.config.SloConfig", "takes": ["ttft_s"]}),
        ("symbol", {"name": "pdplugins.types"}),
        ("symbol", {"name": "pdplugins.types.Router", "members": ["on_arrival", "on_prefill_done"]}),
        ("file", {"name": "pdplugins/types.py", "sha256": SHA}),
        ("program", {"name": "json.tool", "flags": ["--indent", "--compact"]}),
        (
            "metric",
            {"name": "prefill_decode", "parts": ["pdplugins.types.Role.PREFILL", "pdplugins.types.Role.DECODE"]},
        ),
        ("env", {"name": "PDPLUGINS_DISABLE", "in": "pdplugins/registry.py"}),
        ("field", {"name": "isl_tokens", "in": "pdplugins/contracts/planner.py"}),
        ("dependency", {"module": "yaml", "fix": "pip install pyyaml"}),
    ],
)
def test_a_seam_as_recorded_is_ok(kind: str, seam: dict[str, Any]) -> None:
    assert check(kind, **seam).state == "ok", check(kind, **seam)


@pytest.mark.parametrize(
    ("kind", "seam", "detail"),
    [
        ("symbol", {"name": "pdplugins.types.Gone"}, "AttributeError: .*no attribute 'Gone'"),
        ("symbol", {"name": "pdplugins.gone.Thing"}, "AttributeError|ModuleNotFoundError"),
        ("symbol", {"name": "nowhere.at.all"}, "ModuleNotFoundError: No module named 'nowhere'"),
        ("symbol", {"name": "pdplugins.types.ScalePlan", "takes": ["tp"]}, "takes prefill, .*; no longer tp"),
        ("symbol", {"name": "pdplugins.config.SloConfig", "takes": ["itl"]}, "takes ttft_s, tpot_s; no longer itl"),
        ("symbol", {"name": "pdplugins.types.Role", "has": ["ENCODE"]}, "has no ENCODE"),
        ("symbol", {"name": "pdplugins.types.Role.PREFILL", "value": "p"}, "is <Role.PREFILL: 'prefill'>, not 'p'"),
        ("symbol", {"name": "pdplugins.types.Router", "members": ["on_arrival"]}, "members now: on_prefill_done"),
        ("file", {"name": "pdplugins/types.py", "sha256": "0" * 64}, f"has sha256 {SHA[:12]}…, recorded was 000000"),
        ("file", {"name": "pdplugins/gone.py", "sha256": "0"}, "is missing"),
        ("program", {"name": "json.tool", "flags": ["--indent", "--gone"]}, "has no --gone"),
        ("program", {"name": "json.gone", "flags": []}, "--help exits with 1: .*No module named json.gone"),
        ("metric", {"name": "prefill", "parts": ["pdplugins.types.Role.DECODE"]}, "is called decode now"),
        ("env", {"name": "PDPLUGINS_GONE", "in": "pdplugins/registry.py"}, r"is not in pdplugins/registry\.py"),
    ],
)
def test_a_seam_that_has_changed_fails_with_what_is_there_now(kind: str, seam: dict[str, Any], detail: str) -> None:
    result = check(kind, **seam)
    assert result.state == "fail"
    assert result.fix == "pdplugins needs it to test; use pdplugins 0.1.0"
    assert re.search(detail, result.detail), result


def test_a_module_of_a_host_that_lacks_a_package_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the module itself, as if the host had none such."""
    (tmp_path / "a_host").mkdir()
    (tmp_path / "a_host" / "__init__.py").touch()
    (tmp_path / "a_host" / "inner.py").write_text("import a_package_of_others\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = check("symbol", name="a_host.inner.Thing")
    assert (found.state, found.detail) == ("fail", "imports a_package_of_others, which is not installed")
    assert "no attribute" in check("symbol", name="a_host.outer.Thing").detail


@pytest.mark.parametrize(("version", "runs"), [("1.4.2", True), ("1.4.9", True), ("1.5.1", False), ("1.6.1", False)])
def test_another_version_of_a_host_is_refused_before_anything_starts(
    version: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seams.importlib.metadata, "version", lambda _: version)
    said = refusal(lambda: seams.need_version("dynamo", "serve"))
    assert (said == "") is runs
    if not runs:
        assert said.startswith(f"serve: made for ai-dynamo >=1.4.2,<1.5, and {version} is installed; pip install 'ai-")


def test_a_missing_dependency_says_how_to_get_it() -> None:
    result = check("dependency", module="no_such_module", fix="pip install no-such-module")
    assert result.line() == (
        "fail  imports no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
        "; fix: pip install no-such-module"
    )


def test_a_host_of_the_wrong_version_or_missing_says_what_to_install() -> None:
    (old,) = seams.examine_host(HOST | {"versions": ">=99"})
    assert (old.state, old.fix) == ("fail", "pip install 'pdplugins>=99'")
    (missing,) = seams.examine_host(HOST | {"distribution": "no-such-host"})
    assert (missing.state, missing.detail) == ("fail", "no no-such-host here")
    (optional,) = seams.examine_host(HOST | {"distribution": "no-such-host", "required": False})
    assert optional.state == "warn"


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)  # so that the only command keeps its name
    doctor.pd_register_commands(app)
    done = CliRunner().invoke(app, ["doctor", *arguments])
    return done.exit_code, done.output


def test_the_command_fails_when_something_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "data_dir", lambda name: tmp_path)
    assert run("--config", "dopd")[0] == 0
    (tmp_path / "x.toml").write_text('host="x"\ndistribution="no-such-host"\nversions=">=1"\ntested=[]')
    code, output = run()
    assert code == 1
    assert "fail  x >=1: no no-such-host here; fix: pip install 'no-such-host>=1'" in output
    code, output = run("--json")
    assert code == 1
    assert json.loads(output)[-1]["fix"] == "pip install 'no-such-host>=1'"


def test_a_bad_config_or_profile_fails_and_a_taken_port_warns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scripted: Registry
) -> None:
    monkeypatch.setattr(doctor, "data_dir", lambda name: tmp_path)
    (tmp_path / "c.yaml").write_text("planner: scripted\ndeployment: {profile: mi300x/none}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run("--config", f"{tmp_path}/c.yaml", "--port", str(port))
    assert code == 1
    assert "there is no 'mi300x/none'; choose from" in output
    assert f"warn  port {port}: Address already in use; fix: choose another with --port" in output


@pytest.mark.parametrize(
    ("picked", "state"),
    [("sglang: {dual_role: true}", "ok"), ("router: arrow", "ok"), ("router: {name: arrow, ttft_share: -1}", "fail")],
)
def test_a_config_needs_no_planner_but_what_it_picks_must_be_right(tmp_path: Path, picked: str, state: str) -> None:
    """A gateway and SGLang servers have none."""
    config = tmp_path / "c.yaml"
    config.write_text(picked)
    _, output = run("--config", str(config), "--json")
    found = {check["name"]: check["state"] for check in json.loads(output)}
    assert found[f"config {config}"] == state


@pytest.mark.parametrize(("strict", "does"), [(True, "will not start"), (False, "serves stock")])
def test_a_feature_of_sglang_that_would_be_refused_is_told(tmp_path: Path, strict: bool, does: str) -> None:
    config = tmp_path / "dual.yaml"
    config.write_text(f"sglang: {{dual_role: true, strict: {str(strict).lower()}}}")
    host = tmp_path / "sglang.toml"
    manifest = 'host = "sglang"\ndistribution = "pdplugins"\ntested = ["1"]\nversions = "'
    host.write_text(manifest + '>=0.1"')
    assert feature_of(config, tmp_path) == ("ok", "the plugin can hook it")
    host.write_text(manifest + '<0.1"')
    state, detail = feature_of(config, tmp_path)
    assert state == "fail"
    assert detail.startswith(f"refused, a server {does}")


def test_without_sglang_one_line_says_that_it_is_not_needed(tmp_path: Path) -> None:
    lines = (
        'host = "sglang"',
        'distribution = "no-such-host"',
        'versions = ">=1"',
        'tested = ["1"]',
        "required = false",
    )
    (tmp_path / "sglang.toml").write_text("\n".join(lines))
    found = [check for check in doctor.examine("dopd", 0, tmp_path) if check.name.startswith("sglang")]
    assert [(check.state, check.detail) for check in found] == [
        ("warn", "no no-such-host here, which is fine unless you use sglang")
    ]


def feature_of(config: Path, hooks: Path) -> tuple[str, str]:
    """What doctor says of the feature that `config` asks for."""
    checks = doctor.examine(str(config), 0, hooks)
    return next((check.state, check.detail) for check in checks if check.name == "sglang: dual_role")


def simulator_kernel(hooks: Path) -> tuple[str, str]:
    """What doctor says of the simulator's kernel."""
    checks = doctor.examine("dopd", 0, hooks)
    return next((check.state, check.line()) for check in checks if check.name == "simulator kernel")


def test_it_says_which_kernel_of_the_simulator_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "CORE", tmp_path)
    monkeypatch.setattr(kernel, "COMPILED", False)
    state, line = simulator_kernel(tmp_path)
    assert state == "ok"
    assert line.startswith("  ok  simulator kernel: plain Python")

    source = tmp_path / "steps.py"
    source.write_text("STEP = 1\n")
    stamp = {source.name: hashlib.sha256(source.read_bytes()).hexdigest()}
    (tmp_path / "kernel.json").write_text(json.dumps(stamp))
    monkeypatch.setattr(kernel, "COMPILED", True)
    assert simulator_kernel(tmp_path) == ("ok", "  ok  simulator kernel: compiled")

    source.write_text("STEP = 2\n")
    state, line = simulator_kernel(tmp_path)
    assert state == "fail"
    assert "not from the sources that are here (steps.py changed); fix: compile it again" in line


@pytest.mark.parametrize(("distribution", "state"), [("pdplugins", "fail"), ("pdplugins-slim", "warn")])
def test_a_slim_installation_may_lack_dynamo(
    distribution: str, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "installed", lambda: distribution)
    monkeypatch.setattr("importlib.metadata.metadata", lambda name: {"Requires-Python": ">=3.11"})
    lines = ('host = "dynamo"', 'distribution = "no-such-host"', 'versions = ">=1"', 'tested = ["1"]')
    (tmp_path / "dynamo.toml").write_text("\n".join(lines))
    (found,) = (one for one in doctor.examine("dopd", 0, tmp_path) if one.name == "dynamo >=1")
    assert found.state == state
