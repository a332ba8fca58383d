"""How the processes of the stack are started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdplugins.config import find, load
from pdplugins.hosts.dynamo.local.engine import Mocker
from pdplugins.runtime.assembly import build_deployment
from pdplugins.types import Role


@pytest.fixture
def mocker(tmp_path: Path) -> Mocker:
    engine = Mocker(tmp_path, "m", build_deployment(load(find("dopd"))), delay_s=28.0, broker_url="xsub=a , xpub=b")
    engine.prepare()
    return engine


def test_only_workers_that_the_planner_adds_wait_for_their_start_up(mocker: Mocker) -> None:
    """The first ones serve at once, so that the endpoint answers."""
    assert mocker.worker(Role.PREFILL, at_once=True)[4] == "0.0"
    assert mocker.worker(Role.PREFILL, at_once=False)[4] == "28.0"


def test_every_file_that_a_command_names_is_there(mocker: Mocker) -> None:
    """Model, timing table, engine settings."""
    for role in Role:
        command = mocker.worker(role, at_once=True)
        for option in ("--model-path", "--extra-engine-args"):
            assert Path(command[command.index(option) + 1]).exists()
        settings = json.loads(Path(command[command.index("--extra-engine-args") + 1]).read_text())
        assert Path(settings["planner_profile_data"]).exists()
        assert "startup_time" not in settings


def test_another_deployments_settings_do_not_leak_in(mocker: Mocker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that is set up for a cluster must not pull the local stack towards it."""
    for name in ("DYN_NAMESPACE", "DYN_HTTP_PORT", "ETCD_ENDPOINTS", "NATS_SERVER"):
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("DYN_LOG", "debug")
    environment = mocker.environment("prefill-1")
    assert "elsewhere" not in environment.values()
    assert environment["DYN_LOG"] == "debug"
    assert environment["DYN_STABLE_ROUTING_ID"] == "prefill-1"
    assert environment["DYN_DISCOVERY_BACKEND"] == "file"


def test_a_request_that_all_workers_fail_takes_them_away_for_a_second_and_no_longer(mocker: Mocker) -> None:
    """By default it is five. With none at all, all attempts of a request may go to a worker that has just died."""
    assert mocker.environment()["DYN_RUNTIME_INHIBITED_DURATION_SECS"] == "1"
