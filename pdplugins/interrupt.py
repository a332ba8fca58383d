"""Ctrl-C for long runs: they ask whether it was pressed, at a moment that suits them.

An exception at any moment could leave an event half done. Compiled code does not survive one that is raised while it
multiplies large integers, where CPython checks for signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield what tells whether Ctrl-C was pressed within the block; a second one raises KeyboardInterrupt.

    Outside the main thread, and where SIGINT is ignored or has a handler of its own, nothing changes.
    """
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
