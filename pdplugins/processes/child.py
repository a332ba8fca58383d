"""The entry point of every launched process: it ties its life to the launcher's, then becomes the real program.

Arguments that nobody may see come through the environment, since every user can read a command line. They are kept out
of the program's log, too.

``python -m pdplugins.processes.child PARENT_PID DELAY_S MODULE ARGUMENTS…``. The kernel kills the process when the
launcher dies in any way, even by SIGKILL. This is done here and not between fork and exec, because the launcher runs
Dynamo's threads, and Python code in a forked copy of such a process is unsafe.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import time

from pdplugins.interrupt import STOPPING
from pdplugins.redaction import redact_every_log, secret

_PR_SET_PDEATHSIG = 1
SECRET_ARGUMENTS = "PDPLUGINS_SECRET_ARGUMENTS"  # noqa: S105 - the name of a variable
"""Environment variable with further arguments of the program, as a JSON list."""


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies. Exit at once if it is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # an exception would be told: nobody is left to read it


def stay_with(parent: int) -> None:
    """Make a process of a pool, which `parent` has forked, ignore Ctrl-C and end when its parent ends.

    SIGTERM ends it at once: the parent's handler, which came with the fork, may never get to run.
    """
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # `pools.finished` forked it with both held back


def _secret_arguments() -> list[str]:
    """Take the secret arguments out of the environment. Their values are those that are no options."""
    given: list[str] = json.loads(os.environ.pop(SECRET_ARGUMENTS, "[]"))
    for value in given:
        if not value.startswith("--"):
            secret(value)
    if given:
        redact_every_log()
    return given


def main() -> None:
    """Run the module that the command line names."""
    parent, delay_s, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    time.sleep(float(delay_s))
    sys.argv = [module, *arguments, *_secret_arguments()]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
