"""Ports that nobody listens on, and that nobody is handed who asks for any."""

from __future__ import annotations

import socket

import pytest

from pdplugins.errors import HostError
from pdplugins.processes import ports
from pdplugins.processes.ports import free_ports


def test_ports_are_free_all_different_and_none_that_the_system_hands_out() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        assert port in ports.OURS
        with socket.create_server(("127.0.0.1", port)):
            pass
    with socket.create_server(("127.0.0.1", 0)) as handed_out:
        assert handed_out.getsockname()[1] not in ports.OURS


def test_a_port_that_somebody_listens_on_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(ports, "OURS", [first, second])
    with socket.create_server(("127.0.0.1", first)):
        assert free_ports(1) == [second]
        with pytest.raises(HostError, match="no 2 free ports from"):
            free_ports(2)
