"""Router and workers join the Dynamo that the environment names: that of one machine, or that of a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.hosts.dynamo.runtime import make_runtime, namespace

pytestmark = pytest.mark.dynamo
LOCAL = {"DYN_DISCOVERY_BACKEND": "file", "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq"}
CLUSTER = {"DYN_DISCOVERY_BACKEND": "etcd", "DYN_EVENT_PLANE": "nats"}


@pytest.mark.parametrize(
    ("says", "planes"),
    [(LOCAL, ("file", "tcp", "zmq")), (CLUSTER, ("etcd", "tcp", "nats")), ({}, ("etcd", "tcp", None))],
)
def test_the_environment_says_how_processes_find_and_reach_each_other(
    says: dict[str, str], planes: tuple[str, str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(loop: Any, discovery: str, requests: str, *, event_plane: str | None) -> tuple[Any, ...]:
        return discovery, requests, event_plane

    monkeypatch.setattr("dynamo.runtime.DistributedRuntime", made)
    for name in LOCAL:
        monkeypatch.delenv(name, raising=False)
    for name, value in says.items():
        monkeypatch.setenv(name, value)

    async def runtime() -> Any:
        return make_runtime()

    assert asyncio.run(runtime()) == planes


def test_workers_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_NAMESPACE", raising=False)
    assert namespace() == "dynamo"
    monkeypatch.setenv("DYN_NAMESPACE", "chat")
    assert namespace() == "chat"
