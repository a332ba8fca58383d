"""How SGLang's workers are started, and what is refused before anything starts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pdplugins.config import find, load
from pdplugins.errors import ConfigError, HostError
from pdplugins.gateway.engines.sglang.ranks import STORE
from pdplugins.hosts.dynamo.local.options import not_driven, pick_config
from pdplugins.hosts.dynamo.local.sglang_engine import Sglang
from pdplugins.hosts.dynamo.local.sglang_options import SglangSpec, sglang_spec
from pdplugins.hosts.dynamo.local.sglang_python import check_python
from pdplugins.types import Role


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    return tmp_path / "m"


@pytest.fixture
def engine(tmp_path: Path, model: Path) -> Sglang:
    (tmp_path / "stack").mkdir()
    spec = SglangSpec(model, "/opt/python", ("--tp-size", "2"))
    engine = Sglang(tmp_path / "stack", "m", load(find("arrow")), 0.0, "xsub=a , xpub=b", spec)
    engine.prepare()
    return engine


def test_a_worker_that_does_both_phases_is_a_decode_worker_with_our_plugin(engine: Sglang) -> None:
    """Registered where the planner counts workers of its role."""
    command = engine.worker(Role.PREFILL, at_once=True, both=True)
    assert command[0] == "/opt/python"
    assert command[command.index("--disaggregation-mode") + 1] == "decode"
    assert command[command.index("--endpoint") + 1] == "dyn://dynamo.prefill.generate"
    assert command[-2:] == ["--tp-size", "2"]
    config = load(Path(engine.worker_environment("prefill-1", both=True)["PDPLUGINS_CONFIG"]))
    assert config.sglang.dual_role


def test_a_worker_that_keeps_its_role_is_a_stock_one(engine: Sglang) -> None:
    for role in Role:
        command = engine.worker(role, at_once=True)
        assert command[command.index("--disaggregation-mode") + 1] == role
    config = load(Path(engine.worker_environment("prefill-1", both=False)["PDPLUGINS_CONFIG"]))
    assert not config.sglang.dual_role


def test_no_two_workers_have_the_same_bootstrap_port(engine: Sglang) -> None:
    """One that dies is known by its address."""
    commands = [engine.worker(Role.DECODE, at_once=True, both=True) for _ in range(4)]
    assert len({command[command.index("--disaggregation-bootstrap-port") + 1] for command in commands}) == 4


def test_a_leg_whose_peer_has_died_ends_when_the_router_gives_it_up(
    engine: Sglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the operator has said something else."""
    name = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
    assert engine.worker_environment("decode-1", both=True)[name] == "60"
    monkeypatch.setenv(name, "7")
    assert engine.worker_environment("decode-1", both=True)[name] == "7"


def test_workers_listen_on_this_machine_only(engine: Sglang) -> None:
    command = engine.worker(Role.DECODE, at_once=True, both=True)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert engine.worker_environment("decode-1", both=True)["SGLANG_HOST_IP"] == "127.0.0.1"


def test_the_ranks_of_a_worker_meet_in_a_file_of_their_own(engine: Sglang, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's other store listens on every address. Who asks for another way gets it."""
    stores = [engine.worker_environment("decode-1", both=both)[STORE] for both in (False, True)]
    assert len(set(stores)) == 2
    assert all(store.startswith("file:///") for store in stores)
    monkeypatch.setenv(STORE, "env://")
    assert engine.worker_environment("decode-1", both=True)[STORE] == "env://"


@pytest.mark.parametrize("option", ["--nnodes=2", "--dist-init-addr=10.0.0.1:5000", "--dp-size=2", "--dp"])
def test_ranks_on_several_hosts_or_in_several_groups_do_not(tmp_path: Path, model: Path, option: str) -> None:
    spec = SglangSpec(model, "/opt/python", (option,))
    engine = Sglang(tmp_path, "m", load(find("arrow")), 0.0, "", spec)
    environment = engine.worker_environment("decode-1", both=True)
    assert STORE not in environment
    assert ("GLOO_SOCKET_IFNAME" in environment) == option.startswith("--dp")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no model; add --model-path"),
        ({"model": Path("no/such")}, "no model there"),
        ({"arguments": "'--open"}, "--engine-args: .*close every quotation"),
        ({"arguments": "--tp 2 --endpoint=x --host y"}, "leave out --endpoint, --host; the launcher sets it"),
        ({"engine": "mocker"}, "--model-path is about SGLang's workers"),
        ({"engine": "mocker", "model": None, "arguments": "--tp 2"}, "--engine-args is about SGLang's workers"),
    ],
)
def test_options_that_make_no_sense_are_refused(model: Path, changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"engine": "sglang", "model": model, "python": None, "arguments": None, **changes}
    with pytest.raises(ConfigError, match=message):
        sglang_spec(**given)


def test_options_that_make_sense_are_read(model: Path) -> None:
    assert sglang_spec("mocker", None, None, None) is None
    assert sglang_spec("sglang", model, None, "--tp 2") == SglangSpec(model, sys.executable, ("--tp", "2"))


def test_a_python_without_sglang_is_refused(tmp_path: Path) -> None:
    """It says what is missing, and what to do."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho dynamo.sglang\n")
    other.chmod(0o755)
    message = f"{other} has no dynamo.sglang; install sglang, ai-dynamo==1.4.2 and pdplugins there, or name another"
    with pytest.raises(HostError, match=re.escape(message)):
        check_python(str(other))
    with pytest.raises(HostError, match="cannot run"):
        check_python(str(tmp_path / "nothing"))
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    with pytest.raises(HostError, match=r"has no sglang, no dynamo\.sglang"):
        check_python(str(other))


def test_the_config_says_no_kv_cache_for_engines_that_have_one() -> None:
    """Mockers are told theirs; SGLang's workers say it."""
    assert pick_config("dopd", None, None, None, 2.0).deployment.kv_tokens is not None
    assert pick_config("dopd", None, None, None, 2.0, engine="sglang").deployment.kv_tokens is None


def test_batch_schedulers_run_in_sglangs_workers() -> None:
    config = pick_config("dopd", None, None, None, 2.0, "dopd")
    assert not_driven(config, routed=True, engine="sglang") == []
    assert "batch_scheduler" in json.dumps(not_driven(config, routed=True))
