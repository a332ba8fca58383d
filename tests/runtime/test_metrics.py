"""Planner metrics over HTTP."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pdplugins.config import parse
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import HostError
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.journal import build_journal
from pdplugins.runtime.metrics import Metrics


def test_metrics_are_served_until_stopped_and_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=rf"planner metrics: cannot listen on 127\.0\.0\.1:{port} \(.*\); choose"):
            Metrics(Kind.PLANNER, CollectorRegistry()).serve(port)
    metrics = Metrics(Kind.PLANNER, CollectorRegistry())
    metrics.fault(Fault.STALE_METRICS)
    stop = metrics.serve(port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            assert 'pdplugins_planner_errors_total{kind="stale_metrics"} 1.0' in page.read().decode()
    finally:
        stop()
    with pytest.raises(OSError, match=r"refused|reset"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_an_address_of_another_machine_is_one_line() -> None:
    said = r"^planner metrics: cannot listen on 192\.0\.2\.1:0 \(.*\); 192\.0\.2\.1 is no address of this machine"
    with pytest.raises(HostError, match=said):
        Metrics(Kind.PLANNER, CollectorRegistry()).serve(0, "192.0.2.1")


def test_a_client_of_the_metrics_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdplugins.runtime.metrics.READ_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = Metrics(Kind.PLANNER, CollectorRegistry()).serve(port)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
            silent.sendall(b"GET /metr")
            assert silent.recv(1) == b""
    finally:
        stop()


def test_a_signal_of_any_name_leaves_a_page_that_can_be_read() -> None:
    """A name that cannot be encoded would break each later read of the page."""
    registry = CollectorRegistry()
    metrics = Metrics(Kind.PLANNER, registry)
    metrics.signals({"a\ud800": 1.0, "b" * 10_000: 2.0, "good": 3.0})
    page = generate_latest(registry).decode()
    assert '"good"} 3.0' in page
    assert max(map(len, page.splitlines())) < 300


@pytest.mark.parametrize("shadow", [True, False])
def test_a_planner_that_nobody_has_asked_yet_has_its_series(shadow: bool) -> None:
    """A rule sees no increase in a series that begins with the event; and none of its rules is for a shadow."""
    registry = CollectorRegistry()
    build_journal(parse({}), build_deployment(parse({})), metrics=[Metrics(Kind.PLANNER, registry)], shadow=shadow)
    sample = registry.get_sample_value
    assert sample("pdplugins_planner_shadow") == shadow
    for change in ("scale_up", "scale_down", "hold"):
        assert sample("pdplugins_planner_decisions_total", {"role": "decode", "kind": change}) == 0
