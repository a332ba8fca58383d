"""A signal may come at any line that the daemon runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import signal, sys
from collections import Counter
from types import SimpleNamespace
from pdplugins.hosts.power import daemon

daemon.PAUSE_S = 0.0
asked = daemon.heed(600.0)
node = SimpleNamespace(ready=True, counts=Counter())
loop = SimpleNamespace(step=lambda now_s: None)


def at(wanted):
    run = 0

    def trace(frame, event, arg):
        nonlocal run
        run += event == "line"
        if event == "line" and run == wanted:
            signal.raise_signal(signal.SIGTERM)
        return trace

    return trace


for line in range(1, 100):
    asked.stop = False
    sys.settrace(at(line))
    daemon.keep(loop, node, asked, lambda: None)
    sys.settrace(None)
print("ended each time")
"""


@pytest.mark.moderate
def test_a_signal_ends_the_loop_at_whatever_line_it_comes() -> None:
    """Where the handler waits for a lock that the interrupted line holds, the process would never end."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ended each time\n", done.stderr
