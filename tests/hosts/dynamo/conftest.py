"""Dynamo's own planner engine for tests, built from the YAML that an operator writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.dynamo.router.rig import Rig
from tests.hosts.dynamo.stock import ENTRY_YAML, PLANNER_YAML, Stock


class Blocking:
    """A `Stock` for tests without a loop of their own."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(stock.start())

    @property
    def pools(self) -> tuple[int, int]:
        return self._stock.pools

    @pools.setter
    def pools(self, pools: tuple[int, int]) -> None:
        self._stock.pools = pools

    def tick(self, rate: float | None, **traffic: float) -> tuple[int, int]:
        return self._loop.run_until_complete(self._stock.tick(rate, **traffic))

    def close(self) -> None:
        self._loop.run_until_complete(self._stock.stop())
        self._loop.close()


@pytest.fixture
def planner_data() -> dict[str, Any]:
    """A config of Dynamo's planner, as an operator writes it, without plugins."""
    return dict(yaml.safe_load(PLANNER_YAML))


@pytest.fixture
def entry_data() -> dict[str, Any]:
    """Our entry under ``plugin_registration.in_process_plugins``, without its ``kwargs``."""
    return dict(yaml.safe_load(ENTRY_YAML))


@pytest.fixture
def stock(planner_data: dict[str, Any], entry_data: dict[str, Any]) -> Iterator[Callable[..., Blocking]]:
    """Start Dynamo's planner engine with our in-process plugin, given its ``kwargs``."""
    started: list[Blocking] = []

    def start(
        kwargs: dict[str, Any], *, entry: dict[str, Any] | None = None, changes: dict[str, Any] | None = None
    ) -> Blocking:
        ours = entry_data | (entry or {}) | {"kwargs": kwargs}
        plugins = {"plugin_registration": {"in_process_plugins": [ours]}}
        started.append(Blocking(Stock(planner_data | plugins | (changes or {}))))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A frontend and mocker workers for our router, which live as long as the tests."""
    rig = Rig(tmp_path_factory.mktemp("rig"))
    yield rig
    rig.close()


@pytest.fixture
def gateway(tmp_path: Path) -> str:
    """Where the planner's registration gateway listens."""
    return f"unix://{tmp_path}/registry.sock"


@pytest.fixture
def stock_with_gateway(gateway: str, planner_data: dict[str, Any]) -> Callable[..., Stock]:
    """Make, but do not start, Dynamo's planner engine with a gateway that knows the token ``s3cret-token``."""

    def make(**transport: Any) -> Stock:
        data = deepcopy(planner_data)
        data["scheduling"]["gateway"] = {"enabled": True, "listen": gateway}
        data["plugin_registration"] = {
            "auth": {"trusted_sources": ["static_secret"], "static_secrets": {"s3cret-token": "pdplugins"}},
            "transport": {"allow_insecure_grpc": True, "request_timeout_seconds": 2.0} | transport,
        }
        return Stock(data)

    return make
