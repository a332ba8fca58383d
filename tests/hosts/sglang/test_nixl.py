"""Threads that poll for transfers pause."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from pdplugins.errors import HostError
from pdplugins.hosts.sglang import nixl


class AgentConfig:
    """Like NIXL's compiled one: properties."""

    def __init__(self) -> None:
        self._delay = -1

    @property
    def pthrDelay(self) -> int:  # noqa: N802
        return self._delay

    @pthrDelay.setter
    def pthrDelay(self, value: int) -> None:  # noqa: N802
        self._delay = value


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("nixl._api")
    module.nixlBind = SimpleNamespace(nixlAgentConfig=AgentConfig, DRAM_SEG=1)  # type: ignore[attr-defined]
    module.nixl_agent = type("nixl_agent", (), {"__module__": "nixl._api"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nixl", ModuleType("nixl"))
    monkeypatch.setitem(sys.modules, "nixl._api", module)
    return module


def test_agents_made_later_pause(api: ModuleType) -> None:
    nixl.pause_progress_threads(200)
    nixl.pause_progress_threads(500)  # SGLang may load plugins twice: the first one holds
    config = api.nixlBind.nixlAgentConfig()
    config.pthrDelay = 0
    assert config.pthrDelay == 200
    config.pthrDelay = 5
    assert config.pthrDelay == 5
    assert api.nixlBind.DRAM_SEG == 1


def test_zero_leaves_nixl_alone(api: ModuleType) -> None:
    before = api.nixlBind
    nixl.pause_progress_threads(0)
    assert api.nixlBind is before


def test_without_nixl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.delitem(sys.modules, "nixl._api", raising=False)
    with pytest.raises(HostError, match="pip install nixl"):
        nixl.pause_progress_threads(200)


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """SGLang's module that transfers."""
    module = ModuleType(nixl.TARGET.rpartition(".")[0])
    module.time = time  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_transfer_threads_pause_where_they_would_poll_at_once(transfers: ModuleType) -> None:
    clock = nixl.pause_transfer_threads(20_000)
    assert transfers.time is clock
    for asked_s, least_s in ((0, 0.02), (0.03, 0.03)):
        began = time.perf_counter()
        transfers.time.sleep(asked_s)
        assert time.perf_counter() - began >= least_s
    assert transfers.time.perf_counter is time.perf_counter


def test_zero_leaves_transfer_threads_alone(transfers: ModuleType) -> None:
    assert nixl.pause_transfer_threads(0).pause_s == 0
    assert transfers.time is time
