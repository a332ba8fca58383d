"""The loop on large nodes and hung drivers: it never waits for a device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdplugins.power.saved import SavedCaps
from tests.power.stage import Stage


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SavedCaps]:
    one = SavedCaps(tmp_path / "state")
    yield one
    one.close()


@pytest.mark.moderate
@pytest.mark.parametrize("gpus", [8, 72])
def test_every_gpu_gets_its_cap_and_no_driver_call_is_in_the_decision_path(saved: SavedCaps, gpus: int) -> None:
    stage = Stage(gpus, saved)
    assert stage.until(lambda: bool(stage.node.before_w) and stage.node.caps.complete)
    assert {account.told_w for account in stage.node.caps.accounts.values()} == {600.0}
    assert threading.current_thread().name not in stage.backend.threads
    assert len(stage.backend.threads) == gpus


@pytest.mark.moderate
def test_a_hung_device_holds_up_no_step_and_keeps_its_watts(saved: SavedCaps) -> None:
    stage = Stage(8, saved)
    assert stage.until(lambda: bool(stage.node.before_w) and stage.node.caps.complete)
    uuids = list(stage.node.gpus)
    hung = stage.backend.free[uuids[0]] = threading.Event()
    assert stage.until(lambda: stage.node.gpus[uuids[0]].fault == "timeout")
    decisions = stage.loop.controller.calls
    stage.backend.set_cap_w(uuids[1], 300.0)  # somebody else does
    assert stage.until(lambda: stage.node.counts["changed_by_others"] == 1)
    assert stage.until(lambda: stage.node.caps.accounts[uuids[1]].told_w == 600.0)
    assert stage.until(lambda: stage.loop.controller.calls > decisions + 1)
    assert stage.node.caps.accounts[uuids[0]].kept_w == 600.0
    assert stage.node.caps.kept_w <= 4800.0
    hung.set()
    assert stage.until(lambda: stage.node.gpus[uuids[0]].fault is None)
