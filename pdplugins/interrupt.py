"""Ctrl-C for long runs: they check at a safe moment whether it was pressed. SIGTERM ends a command the same way.

An exception at any moment could leave an event half done. Compiled code even crashes if one is raised while it
multiplies large integers, where CPython checks for signals.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = signal.SIGINT, signal.SIGTERM
"""Signals that stop a command."""
INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM, as of a program that the signal has ended."""


class _Terminate:
    """Handles SIGTERM as Python does Ctrl-C."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM in the block do what Ctrl-C does, so that nothing half-written is left. The exit code is its own.

    Outside the main thread, and where SIGTERM is ignored or has another handler, nothing changes.
    """
    if not _main() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    terminate = _Terminate()
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except SystemExit as error:
        if terminate.came and error.code == INTERRUPTED:
            sys.exit(TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def ctrl_c(*, again: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed in the block. A second Ctrl-C raises KeyboardInterrupt.

    :param again: False: no Ctrl-C raises, however often it is pressed. The block must end soon by itself then.

    Outside the main thread, and where SIGINT is ignored or has another handler, nothing changes. SIGTERM counts as
    Ctrl-C in a block of `sigterm_as_ctrl_c`.
    """
    pressed = False
    usual = {number: signal.getsignal(number) for number in STOPPING if _main()}
    ours = {
        number: handler
        for number, handler in usual.items()
        if handler is signal.default_int_handler or isinstance(handler, _Terminate)
    }

    def note(number: int, _: object) -> None:
        nonlocal pressed
        pressed = True
        handler = ours[signal.Signals(number)]
        if isinstance(handler, _Terminate):
            handler.came = True
        if again:
            signal.signal(number, handler)

    for number in ours:
        signal.signal(number, note)
    try:
        yield lambda: pressed
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _main() -> bool:
    return threading.current_thread() is threading.main_thread()
