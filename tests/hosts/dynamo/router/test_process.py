"""How the router's process ends, on a runtime that stands in for Dynamo's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdplugins.processes.ending import HUNG

PROGRAM = """
import asyncio, sys, time
import pdplugins.hosts.dynamo.router.__main__ as process

class Endpoint:
    metrics = property(lambda self: self)
    def register_prometheus_expfmt_callback(self, callback): pass
    async def unregister_endpoint_instance(self): UNREGISTERS
    async def serve_endpoint(self, handler):
        print("serving", flush=True)
        SERVES

class Runtime:
    ended = asyncio.Event()
    def endpoint(self, name): return Endpoint()
    def shutdown(self): self.ended.set()

async def nothing(*given): pass

async def start(component, runtime): component.workers._subscribers = {}

process.make_runtime, process.register, process.RouterComponent.start = Runtime, nothing, start
process.CUT_OFF_S = 3.0
process.main()
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("router: arrow\ngateway: {drain_s: 0.1}\n", encoding="utf-8")
    return path


def started(config: Path, serves: str, unregisters: str = "pass") -> subprocess.Popen[str]:
    program = PROGRAM.replace("SERVES", serves).replace("UNREGISTERS", unregisters)
    command = [sys.executable, "-c", program]
    command += ["--config", str(config), "--model-path", str(config.parent), "--model-name", "tiny"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_says_why_it_no_longer_serves(config: Path) -> None:
    with started(config, "raise RuntimeError('the lease is lost')") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Dynamo no longer serves it: the lease is lost" in said


@pytest.mark.parametrize("unregisters", ["pass", "raise Exception('it is not there')"], ids=["", "forgotten"])
def test_a_signal_ends_it_in_peace(config: Path, unregisters: str) -> None:
    """Also where discovery has forgotten it, after it stood still for a while."""
    with started(config, "await Runtime.ended.wait()", unregisters) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_a_signal_ends_it_while_a_policy_hangs(config: Path) -> None:
    with started(config, "while True: time.sleep(0.01)") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == HUNG
