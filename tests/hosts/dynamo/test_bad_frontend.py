"""A planner goes on whatever the frontend does that it reads: the last plan holds, and it ends when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pdplugins.config import Config
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.fetching import fetch
from pdplugins.runtime.planner import build_safe_planner
from tests.hosts.dynamo.hostile import NONSENSE, SLOW, server
from tests.programs import PDPLUGINS

pytestmark = pytest.mark.dynamo

mirror = pytest.importorskip("dynamo.planner.plugins.types")
proposer = pytest.importorskip("pdplugins.hosts.dynamo.doors.proposer")
grpc = pytest.importorskip("grpc")
pb = pytest.importorskip("dynamo.planner.plugins.proto.v1.plugin_pb2")
pbg = pytest.importorskip("dynamo.planner.plugins.proto.v1.plugin_pb2_grpc")


@pytest.mark.parametrize("how", [*NONSENSE, *SLOW])
def test_a_planner_holds_its_plan(how: str, config: Config) -> None:
    context = mirror.PipelineContext(
        request_id="tick-12.5",
        observations=mirror.ObservationData(workers=mirror.WorkerState(ready_prefill=2, ready_decode=1)),
    )
    planner = build_safe_planner(config)
    last = planner.last

    async def story(url: str) -> Any:
        frontend = FrontendMetrics(url, fetch=partial(fetch, within_s=0.3))
        ours = proposer.Proposer(planner, frontend=frontend)
        await ours.begin()
        return await ours.propose(context)

    with server({**NONSENSE, **SLOW}[how]) as url:
        assert asyncio.run(story(url)) is None  # nothing decided yet: Dynamo's own behaviour stays
    held = planner.last
    assert (held.prefill, held.decode) == (last.prefill, last.decode)
    assert held.reason.startswith("hold, observation: ")


def test_the_external_planner_answers_and_ends_while_its_frontend_trickles(tmp_path: Path) -> None:
    socket = tmp_path / "planner.sock"

    async def ask() -> Any:
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            context = pb.PipelineContext(request_id="tick-12.5")
            context.observations.workers.ready_prefill = context.observations.workers.ready_decode = 1
            await pbg.PluginLifecycleStub(channel).Bootstrap(pb.BootstrapRequest(), wait_for_ready=True, timeout=60)
            return await pbg.ProposePluginStub(channel).Propose(pb.ProposeStageRequest(context=context), timeout=30)

    with server(SLOW["trickles headers"]) as url:
        command = ["planner", "--listen", f"unix://{socket}", "--frontend-url", url]
        process = subprocess.Popen(
            [*PDPLUGINS, *command],
            env={**os.environ, "http_proxy": "http://127.0.0.1:9"},
            stderr=subprocess.DEVNULL,
        )
        try:
            answer = asyncio.run(ask())
            assert answer.WhichOneof("result") == "accept"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
