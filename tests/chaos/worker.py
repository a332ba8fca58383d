"""A worker in a process of its own, which can be stopped and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys

from pdplugins.processes.ports import free_ports
from tests.gateway.fake import FakeWorker, Rooms, settled


class Child:
    """One unified worker in a process. It keeps its port when it is started again."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Child:
        self.process = subprocess.Popen([sys.executable, "-m", "tests.chaos.worker", str(self.port)])

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        assert await settled(listens)
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def stop(self) -> None:
        """Kill it."""
        assert self.process is not None
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


async def main(port: int) -> None:
    worker = FakeWorker("unified", Rooms(), 9100, token_s=0.001)
    worker.port = port
    await worker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
