"""Ctrl-C waits for the end of the event that is being handled."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pdplugins.interrupt import ctrl_c


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
