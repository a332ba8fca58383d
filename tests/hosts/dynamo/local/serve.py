"""A running ``dynamo serve``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pdplugins.processes.ending import HUNG

DYNAMO = [
    sys.executable,
    "-P",
    "-c",
    "from pdplugins.cli import dynamo_main; dynamo_main()",
    "serve",
    "--planner",
    "dopd",
]

PATIENCE_S = 120.0
"""A guard against a stack that hangs: what a slow machine may take for any of its steps."""


def below(pid: int) -> list[int]:
    """Process ids of everything that runs below a process."""
    tree = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in tree.splitlines()]
    found = [pid]
    for above in found:  # which grows meanwhile
        found += [child for child, parent in parents if parent == above]
    return found[1:]


class Serve:
    """One ``dynamo serve`` process, its JSON lines and everything it started."""

    def __init__(
        self, arguments: list[str], temp: Path, environment: Mapping[str, str], patience_s: float = PATIENCE_S
    ) -> None:
        self.temp = temp
        self._patience_s = patience_s
        self.lines: list[dict[str, Any]] = []
        # Started where a file of the user's has the name of a package that the host imports.
        folder = temp.with_name(f"{temp.name}-cwd")
        folder.mkdir()
        (folder / "h2.py").write_text("raise SystemExit('the folder that dynamo serve was started in was imported')")
        self.process = subprocess.Popen(
            [*DYNAMO, "--status", "json-lines", *arguments],
            cwd=folder,
            env={**os.environ, **environment, "TMPDIR": str(temp)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == name]

    def wait(self, what: Callable[[], Any]) -> Any:
        """Return what `what` returns once that is true; fail when it takes too long or the process ends."""
        deadline = time.monotonic() + self._patience_s
        while not (seen := what()):
            assert self.process.poll() is None, f"dynamo serve ended: {self.errors()}"
            assert time.monotonic() < deadline, f"not within {self._patience_s} s; last line: {self.lines[-1:]}"
            time.sleep(0.05)
        return seen

    def ready(self) -> dict[str, Any]:
        return self.wait(lambda: self.events("ready"))[0]

    def status(self) -> dict[str, Any]:
        return self.wait(lambda: self.events("status"))[-1]

    def workers(self, role: str, phase: str = "ready") -> dict[str, int]:
        """Process ids of the workers that the last status shows, by name."""
        shown = self.status()["workers"]
        return {w["name"]: w["pid"] for w in shown if w["name"].startswith(role) and w["phase"] == phase}

    def descendants(self) -> list[int]:
        """Process ids of everything that runs below the launcher."""
        return below(self.process.pid)

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and return the launcher's exit code: `HUNG` where its own deadline had to end it."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        if code == HUNG:
            sys.stdout.write(self.errors())  # where it was: pytest shows it where the test fails
        return code

    def finish(self) -> int:
        code = self.process.wait(2 * PATIENCE_S)
        self._reader.join(5)
        return code

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read() if self.process.poll() is not None else ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # the kernel kills everything below it
            self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
