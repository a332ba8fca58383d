"""Ctrl-C waits for the end of the event that is being handled, and SIGTERM is one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from pdplugins.interrupt import ctrl_c, sigterm_as_ctrl_c


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """A shell starts what runs in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_is_told_and_the_second_one_is_raised() -> None:
    with ctrl_c() as pressed:
        assert not pressed()
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_an_exception_again_afterwards() -> None:
    with ctrl_c():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_who_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    """A process of `compare` does: its parent says when to stop."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ctrl_c() as pressed:
            signal.raise_signal(signal.SIGINT)
            assert not pressed()
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_is_told_and_raised_like_ctrl_c() -> None:
    @sigterm_as_ctrl_c()
    def command() -> None:
        with ctrl_c() as pressed:
            signal.raise_signal(signal.SIGTERM)
            assert pressed()
        sys.exit(130)

    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 143
    with pytest.raises(KeyboardInterrupt), sigterm_as_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_other_exit_codes_and_other_handlers_of_sigterm_stay() -> None:
    with pytest.raises(SystemExit) as ended, sigterm_as_ctrl_c():
        sys.exit(130)
    assert ended.value.code == 130
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with sigterm_as_ctrl_c():
            signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
