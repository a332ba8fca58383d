"""Ctrl-C as a question, not as an exception.

An exception would leave an event half done. Compiled code does not even survive one that is raised within the product
of large whole numbers, where CPython looks for signals.
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
