"""NIXL's progress thread gets the pause that its Python API fixes at 0."""

from __future__ import annotations

import sys
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
    nixl.pause_between_polls(200)
    nixl.pause_between_polls(500)  # SGLang may load plugins twice: the first one holds
    config = api.nixlBind.nixlAgentConfig()
    config.pthrDelay = 0
    assert config.pthrDelay == 200
    config.pthrDelay = 5
    assert config.pthrDelay == 5
    assert api.nixlBind.DRAM_SEG == 1


def test_zero_leaves_nixl_alone(api: ModuleType) -> None:
    before = api.nixlBind
    nixl.pause_between_polls(0)
    assert api.nixlBind is before


def test_without_nixl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.delitem(sys.modules, "nixl._api", raising=False)
    with pytest.raises(HostError, match="pip install nixl"):
        nixl.pause_between_polls(200)
