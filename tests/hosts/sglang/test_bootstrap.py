"""Whoever does not answer, the engine goes on; whoever does is asked once."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.sglang import bootstrap
from pdplugins.hosts.sglang.bootstrap import Inquiries

ADDRESS = "10.0.0.1:8998"


@pytest.fixture
def manager() -> Any:
    return SimpleNamespace(prefill_info_table={})


def settle(inquiries: Inquiries) -> None:
    for thread in list(inquiries._threads.values()):
        thread.join(10)


def test_an_answer_in_time_is_there_at_once(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PATIENCE_S", 10)
    asked = []

    def answers(manager: Any, address: str) -> bool:
        asked.append(address)
        manager.prefill_info_table[address] = "layout"
        return True

    inquiries = Inquiries()
    assert inquiries.ensure(answers, manager, ADDRESS)
    assert inquiries.ensure(answers, manager, ADDRESS)
    assert asked == [ADDRESS]


def test_the_engine_goes_on_while_nobody_answers(manager: Any) -> None:
    answer, asked = threading.Event(), []

    def hangs(manager: Any, address: str) -> bool:
        asked.append(address)
        answer.wait(10)
        manager.prefill_info_table[address] = "layout"
        return True

    inquiries = Inquiries()
    assert [inquiries.ensure(hangs, manager, ADDRESS) for _ in range(3)] == [False] * 3
    assert asked == [ADDRESS]
    answer.set()
    settle(inquiries)
    assert inquiries.ensure(hangs, manager, ADDRESS)


def test_a_refusal_is_asked_again_and_never_raised(
    manager: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bootstrap, "PATIENCE_S", 10)
    asked = []

    def does_not_fit(manager: Any, address: str) -> bool:
        asked.append(address)
        raise RuntimeError("Page size mismatch")

    inquiries = Inquiries()
    with caplog.at_level(logging.WARNING):
        assert not inquiries.ensure(does_not_fit, manager, ADDRESS)
        assert not inquiries.ensure(does_not_fit, manager, ADDRESS)
    assert asked == [ADDRESS] * 2
    assert "cannot prefill for this one: Page size mismatch" in caplog.text


def test_an_address_that_is_silent_stops_the_engine_once(manager: Any) -> None:
    answer = threading.Event()

    def hangs(manager: Any, address: str) -> bool:
        answer.wait(10)
        raise RuntimeError("too late")

    inquiries = Inquiries()
    assert not inquiries.ensure(hangs, manager, ADDRESS)
    began_s = time.monotonic()
    for _ in range(20):
        assert not inquiries.ensure(hangs, manager, ADDRESS)
    assert time.monotonic() - began_s < 10 * bootstrap.PATIENCE_S
    answer.set()
    settle(inquiries)
    assert not inquiries._threads


def test_a_machine_without_a_thread_for_a_moment_does_not_end_the_engine(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(manager: Any, address: str) -> bool:
        manager.prefill_info_table[address] = "layout"
        return True

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    inquiries = Inquiries()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        assert not inquiries.ensure(answers, manager, ADDRESS)
    inquiries.ensure(answers, manager, ADDRESS)
    settle(inquiries)
    assert inquiries.ensure(answers, manager, ADDRESS)
