"""Ctrl-C for long runs: they check at a safe moment whether it was pressed.

An exception at any moment could leave an event half done. Compiled code even crashes if one is raised while it
multiplies large integers, where CPython checks for signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed in the block. A second Ctrl-C raises KeyboardInterrupt.

    Outside the main thread, and where SIGINT is ignored or has another handler, nothing changes.
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
