"""A request's bootstrap address gives its role, and nothing but that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.sglang.roles import Classifier, EngineRole

ME = Classifier.of(["10.0.0.7", "worker-7"], 8998)


def role(host: str | None, port: int | None, room: int | None) -> EngineRole:
    request: Any = SimpleNamespace(bootstrap_host=host, bootstrap_port=port, bootstrap_room=room)
    return ME.role_of(request)


@pytest.mark.parametrize(
    ("host", "port", "room", "expected"),
    [
        (None, None, None, EngineRole.LOCAL),
        (None, 8998, None, EngineRole.LOCAL),  # SGLang fills in its own port
        ("pdp-local", 1, 5, EngineRole.LOCAL),
        ("10.0.0.7", 8998, 5, EngineRole.PREFILL),
        ("WORKER-7", 8998, 5, EngineRole.PREFILL),
        ("10.0.0.7", None, 5, EngineRole.PREFILL),
        ("127.0.0.1", 8998, 5, EngineRole.PREFILL),
        ("[::1]", 8998, 5, EngineRole.PREFILL),
        ("127.0.0.1", 8999, 5, EngineRole.DECODE),  # a neighbour on this machine
        ("10.0.0.8", 8998, 5, EngineRole.DECODE),  # the same port on another machine
        ("2.2.2.2", 8998, 5, EngineRole.DECODE),  # no transfer at all: a prefill side would loop for ever
        (None, 8998, 5, EngineRole.DECODE),
    ],
)
def test_who_prefills_gives_the_role(
    host: str | None, port: int | None, room: int | None, expected: EngineRole
) -> None:
    assert role(host, port, room) is expected


def test_a_server_without_a_name_is_known_by_the_loopback_alone() -> None:
    assert Classifier.of(["[FD00::1]"], 1).hosts >= {"fd00::1"}
    assert Classifier.of(["", "0.0.0.0"], 1).hosts >= {"127.0.0.1", "localhost"}  # noqa: S104
