"""From checked options to a running stack and back to a clean machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pdplugins.contracts.kinds import Kind
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.local.options import Options
from pdplugins.hosts.dynamo.local.routing import router_log
from pdplugins.hosts.dynamo.local.stack import Stack
from pdplugins.processes.folders import own_folder, sweep
from pdplugins.processes.process import open_log
from pdplugins.redaction import redact_logs
from pdplugins.runtime.decision_log import none_of_refused
from pdplugins.runtime.metrics import process_metrics
from pdplugins.runtime.planner import SafePlanner, build_safe_planner

PREFIX = "pdplugins-serve-"
"""Of the temporary folder of a stack."""


def launch(options: Options) -> int:
    """Run the stack until it is stopped or its replay is over; returns the exit code.

    Raises HostError when the stack does not start or one of its indispensable processes ends.
    """
    metrics, log = process_metrics(Kind.PLANNER), options.decision_log
    with none_of_refused(log), none_of_refused(router_log(log) if options.routed else None):
        policy = build_safe_planner(options.config, decision_log=log, metrics=metrics, state=options.state)
        sweep(PREFIX)
        try:
            with own_folder(PREFIX) as folder:
                return _run(options, policy, folder)
        except BrokenPipeError:  # nobody reads standard output any more
            raise
        except OSError as error:
            why = "look at disk space, permissions and process limits"
            raise HostError(f"this machine refuses: {error}; {why}") from None
        finally:
            policy.close()


def _run(options: Options, policy: SafePlanner, folder: Path) -> int:
    """Run the stack in its folder, of which only the logs stay, and they only after an error."""
    logs = (options.log_dir or folder / "logs").absolute()
    try:
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"--log-dir {logs}: {error.strerror}; give a folder that can be written") from None
    try:
        with own_stderr(logs / "launcher.log"), temporary_files(folder):
            code = asyncio.run(Stack(options, policy, folder, logs).run())
    except BaseException:
        _remove_all_but(logs, folder)  # logs say more than the one line that the user sees
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return code


@contextmanager
def own_stderr(path: Path) -> Iterator[None]:
    """Send what Dynamo writes to standard error, and the log messages of this package, to a file."""
    saved, opened = os.dup(2), open_log(path)
    os.dup2(opened, 2)
    os.close(opened)
    handler = logging.StreamHandler()
    redact_logs([handler], "%(asctime)s %(levelname)s %(name)s: %(message)s")
    ours = logging.getLogger("pdplugins")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False  # Dynamo takes the root logger for itself
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = True
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def temporary_files(folder: Path) -> Iterator[None]:
    """Have Python put temporary files into `folder`: each import of Dynamo's logging leaves one behind."""
    saved, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = saved


def _remove_all_but(kept: Path, folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and path != kept:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_file():
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
