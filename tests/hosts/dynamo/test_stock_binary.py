"""Door (b) once more, with nothing of Dynamo's replaced: ``python -m dynamo.planner`` and our entry in its YAML.

Its virtual connector keeps its decisions in etcd whatever the discovery backend is, hence the etcd.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplugins.processes.ports import free_ports
from pdplugins.runtime import explain as explaining
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.replaying import verify

pytestmark = [
    pytest.mark.dynamo,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("etcd") is None, reason="etcd is not installed (Debian: apt-get install etcd-server)"
    ),
]
REQUESTS_PER_S = 12
LOOKS = 300
"""Twice a second. Dynamo's planner itself waits 20 s for what does not come, and plans every 5."""


class Page(BaseHTTPRequestHandler):
    """The frontend's metrics page under 12 requests/s of 3000/300 tokens."""

    since = time.monotonic()

    def do_GET(self) -> None:
        count = int((time.monotonic() - self.since) * REQUESTS_PER_S)
        text = f'dynamo_frontend_requests_started_total{{model="tiny"}} {count}\n'
        for name, tokens in (("input_sequence_tokens", 3000), ("output_sequence_tokens", 300)):
            text += f'dynamo_frontend_{name}_sum{{model="tiny"}} {tokens * count}\n'
            text += f'dynamo_frontend_{name}_count{{model="tiny"}} {count}\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def frontend_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def stack_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """etcd, and an environment for Dynamo that points to it."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    cluster = ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    etcd = subprocess.Popen(
        ["etcd", "--data-dir", f"{tmp_path}/etcd", *urls, *cluster],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for name, value in {
        "ETCD_ENDPOINTS": client,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": f"{tmp_path}/kv",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_NAMESPACE": "dynamo",
        "SCALING_CHECK_INTERVAL": "1",
    }.items():
        monkeypatch.setenv(name, value)
    yield
    etcd.kill()
    etcd.wait()


@pytest.fixture
def metrics_port(planner_data: dict[str, Any]) -> int:
    """The port of the planner's own metrics."""
    (port,) = free_ports(1)
    planner_data["metric_reporting_prometheus_port"] = port
    return port


@pytest.fixture
def planner_extra(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test adds to the planner's YAML."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def planner(
    tmp_path: Path,
    frontend_url: str,
    stack_env: None,
    metrics_port: int,
    planner_data: dict[str, Any],
    entry_data: dict[str, Any],
    planner_extra: dict[str, Any],
) -> Iterator[subprocess.Popen[bytes]]:
    """The stock binary, with DOPD in its YAML."""
    entry = entry_data | {
        "needs": ["observations.fpm", "observations.workers"],
        "kwargs": {"config": "dopd", "frontend_url": frontend_url, "decision_log": f"{tmp_path}/d.jsonl"},
    }
    planner_data |= planner_extra | {"plugin_registration": {"in_process_plugins": [entry]}}
    (tmp_path / "planner.yaml").write_text(yaml.safe_dump(planner_data))
    with (tmp_path / "planner.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dynamo.planner", "--config", f"{tmp_path}/planner.yaml"], stdout=log, stderr=log
        )
        yield process
        process.kill()
        process.wait()


@pytest.mark.parametrize("planner_extra", [{"advisory": True}], indirect=True)
def test_an_advisory_planner_decides_and_logs_and_changes_nothing(
    planner_extra: dict[str, Any], planner: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    log = tmp_path / "d.jsonl"

    async def published() -> int:
        """Wait until DOPD has asked for more, and for two plans after that; return the last decision of Dynamo's."""
        from dynamo._core import VirtualConnectorClient  # noqa: PLC0415 - slow, and may be missing
        from dynamo.runtime import DistributedRuntime  # noqa: PLC0415

        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
        client = VirtualConnectorClient(runtime, os.environ["DYN_NAMESPACE"])
        try:
            for _ in range(LOOKS):
                assert planner.poll() is None, (tmp_path / "planner.log").read_text()[-3000:]
                plans = [one.plan for run in read(log) for one in run.entries] if log.exists() else []
                if len([plan for plan in plans if plan.prefill > 1]) > 2:
                    return int((await client.get()).decision_id)
                await asyncio.sleep(0.5)
        finally:
            runtime.shutdown()
        raise AssertionError((tmp_path / "planner.log").read_text()[-3000:])

    assert asyncio.run(published()) < 0
    told = "\n".join(explaining.explain(log))
    assert "requests/s" in told
    assert verify(read(log)[0]) is None


def test_the_stock_planner_publishes_our_decision_and_our_metrics(
    planner: subprocess.Popen[bytes], metrics_port: int, tmp_path: Path
) -> None:
    async def first_decision_of_ours() -> tuple[int, int]:
        """Obey as a deployment would, until DOPD has seen traffic and asks for more than it started with."""
        from dynamo._core import VirtualConnectorClient  # noqa: PLC0415 - slow, and may be missing
        from dynamo.runtime import DistributedRuntime  # noqa: PLC0415

        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
        client = VirtualConnectorClient(runtime, os.environ["DYN_NAMESPACE"])
        obeyed = -1
        try:
            for _ in range(LOOKS):
                assert planner.poll() is None, (tmp_path / "planner.log").read_text()[-3000:]
                decision = await client.get()
                if decision.decision_id > obeyed:  # Dynamo writes the number last, so the counts are this decision's
                    await client.complete(decision)
                    obeyed = decision.decision_id
                    if decision.num_prefill_workers > 1:
                        return decision.num_prefill_workers, decision.num_decode_workers
                await asyncio.sleep(0.5)
        finally:
            runtime.shutdown()
        raise AssertionError((tmp_path / "planner.log").read_text()[-3000:])

    pools = asyncio.run(first_decision_of_ours())
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as page:
        assert f'pdplugins_planner_target_replicas{{role="prefill"}} {pools[0]}.0' in page.read().decode()
    (run,) = read(tmp_path / "d.jsonl")
    ours = next(entry for entry in run.entries if (entry.plan.prefill, entry.plan.decode) == pools)
    assert ours.view is not None
    assert ours.view.traffic is not None
    assert ours.view.traffic.rate == pytest.approx(REQUESTS_PER_S, rel=0.3)
    assert verify(run) is None
