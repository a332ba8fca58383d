"""What the daemon's loop makes of what a host tells."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdplugins.hosts.power.beside import Seen, Watch
from pdplugins.power.saved import SavedCaps
from pdplugins.types import Role, Traffic, WorkerLoad
from tests.power.stage import Stage

pytestmark = pytest.mark.moderate
OVERLOAD = Seen(
    Traffic(0.5, 10, ttft_s=5.0),
    {},
    {
        Role.PREFILL: (WorkerLoad("p", queued_requests=50),),
        Role.DECODE: (WorkerLoad("d", running_requests=5, recent_tbt_s=0.01),),
    },
)


class Host:
    """Tells an overload of prefill, or breaks."""

    def __init__(self) -> None:
        self.broken = threading.Event()

    def look(self) -> Seen:
        if self.broken.is_set():
            raise ConnectionRefusedError("nobody there")
        return OVERLOAD


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SavedCaps]:
    one = SavedCaps(tmp_path / "state")
    yield one
    one.close()


def caps_w(stage: Stage) -> tuple[float, float]:
    """The caps of a prefill and of a decode GPU."""
    told = [account.told_w for account in stage.node.caps.accounts.values()]
    return told[0], told[-1]


def test_overload_moves_watts_and_then_asks_for_a_role(saved: SavedCaps) -> None:
    watch = Watch(Host(), 0.05)
    stage = Stage(8, saved, watch)
    seen: list[tuple[float, float]] = []

    def asked() -> bool:
        if stage.node.ready:
            seen.append(caps_w(stage))
        return bool(stage.roles.wanted)

    assert stage.until(asked)
    watch.stop()
    assert (650.0, 550.0) in seen
    (move, *_) = stage.roles.wanted
    assert (move.worker, move.role) in [(f"gpu{gpu}", Role.PREFILL) for gpu in range(4, 8)]


def test_a_host_that_is_silent_holds_caps_and_roles_and_is_counted(saved: SavedCaps) -> None:
    host = Host()
    host.broken.set()
    watch = Watch(host, 0.05)
    stage = Stage(8, saved, watch)
    assert stage.until(lambda: bool(stage.node.before_w) and stage.node.caps.complete)
    assert stage.until(lambda: stage.metrics.held["stale"] > 2)
    watch.stop()
    assert caps_w(stage) == (600.0, 600.0)
    assert stage.roles.wanted == []
    assert "nobody there" in watch.error
