"""`pdplugins gateway` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.gateway.fake import FakeWorker, settled


@dataclass
class Running:
    """A gateway that runs."""

    child: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    async def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; return its exit code, and the seconds until it had ended."""
        began_s = monotonic()
        self.child.send_signal(number)
        code = await asyncio.to_thread(self.child.wait, 60)
        return code, monotonic() - began_s


@asynccontextmanager
async def running(
    workers: Sequence[FakeWorker], folder: Path, *options: str, descriptors: tuple[int, int] | None = None
) -> AsyncIterator[Running]:
    """A gateway over these workers, which are stopped in the end.

    :param descriptors: the soft and the hard limit of its open files.
    """
    command = [str(Path(sys.executable).with_name("pdplugins")), "gateway", "--port", "0", "--poll-s", "0.05"]
    for worker in workers:
        command += ["--worker", worker.url]
    log = folder / "log"
    with log.open("w") as out:
        child = subprocess.Popen(
            [*command, *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    if descriptors is not None:  # long before Python has started
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, descriptors)
    try:
        assert await settled(lambda: "gateway on" in log.read_text() or child.poll() is not None, 60), log.read_text()
        found = re.search(r"gateway on (http://[\d.:]+)", log.read_text())
        assert found is not None, log.read_text()
        yield Running(child, found[1], log)
    finally:
        child.kill()
        await asyncio.to_thread(child.wait, 10)
        for worker in workers:
            await worker.stop()
