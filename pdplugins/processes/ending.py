"""Signals that stop this process, and a last resort: it ends in time, whatever hangs."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HUNG = 70
"""Exit code of a process that had to be cut off."""
TELL_S = 1.0
"""Time in which it says so."""
MOST_TOLD = 65_536
"""Bytes of the stacks of its threads that it tells."""


def on_stop(
    stop: Callable[[signal.Signals], object], within_s: float, signals: Iterable[signal.Signals] = SIGNALS
) -> None:
    """Call `stop` on the running loop at each of the signals that stop this process.

    At the first one a timer starts that ends the process `within_s` seconds later, even when a policy never returns or
    a thread waits for a name server. Call it on the main thread. Python heeds a signal between two of its own steps: a
    main thread that never comes back from compiled code is not cut off.
    """
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop, number)
        signal.signal(number, lambda *_: end_within(within_s))  # besides the loop's: a loop that is stuck calls no one


_timers: list[threading.Timer] = []


def end_within(seconds: float) -> None:
    """End this process after `seconds`, if it has not ended by then. Only the first call counts."""
    if not _timers:
        _timers.append(timer := threading.Timer(seconds, _end, [seconds]))
        timer.daemon = True
        timer.start()


def _end(seconds: float) -> None:
    teller = threading.Thread(target=_tell, args=[seconds], daemon=True)
    teller.start()
    teller.join(TELL_S)  # who reads what we say may have stopped: that may even be what hangs
    os._exit(HUNG)


def _tell(seconds: float) -> None:
    stacks = os.memfd_create("stacks")  # not written directly: that would keep all threads of Python waiting
    faulthandler.dump_traceback(file=stacks)
    said = f"pdplugins: did not end within {seconds:g} s, so it was cut off; it was here:\n".encode()
    os.write(2, said + os.pread(stacks, MOST_TOLD, 0))
