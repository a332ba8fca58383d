"""Mock SGLang servers in real time, each on a stand-in GPU: the GPU's cap sets their speed, their work its draw.

One process serves all of them. A server batches step by step: all requests that decode, and prompts in chunks beside
them. A step takes what the profile says, slowed by the cap that the GPU keeps now. Answers mean nothing.

usage: python -m benchmarks.rig.gpus.engines STATE PROFILE FIRST_PORT COUNT
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.rig.gpus.nodes import Node, mapped
from pdplugins.perf.profile import read_profile
from pdplugins.perf.steps import step_model
from pdplugins.perf.table import TableModel
from pdplugins.sim.core.power import PowerCurve, power_curve
from pdplugins.types import Role

STEP_TOKENS, MOST_BATCH, KV_TOKENS = 8192, 256, 1_300_000
LATE_S = 0.05
"""Steps that follow each other make up for so much of what the process was late."""
TOKEN = b'data: {"id":"r","choices":[{"index":0,"finish_reason":null,"text":"x"}]}\n\n'


@dataclass(eq=False)
class Leg:
    """What one server does for one request."""

    prompt: int
    tokens: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Its prefill has ended."""
    out: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    computed: int = 0
    made: int = 0


class Rooms:
    """Where the legs of pairs meet."""

    def __init__(self) -> None:
        self._rooms: dict[int, asyncio.Event] = {}

    def moved(self, room: int) -> asyncio.Event:
        return self._rooms.setdefault(room, asyncio.Event())

    def forget(self, room: int) -> None:
        self._rooms.pop(room, None)


class Engine:
    """One server on one GPU."""

    def __init__(self, node: Node, gpu: int, perf: TableModel, curve: PowerCurve) -> None:
        self._gpu = node.gpu[gpu]
        self._perf, self._curve, self._steps = perf, curve, step_model(perf, 1)
        self.waiting: deque[Leg] = deque()
        self.running: list[Leg] = []
        self._work = asyncio.Event()

    def prefill(self, leg: Leg) -> None:
        self.waiting.append(leg)
        self._work.set()

    def decode(self, leg: Leg) -> None:
        self.running.append(leg)
        self._work.set()

    async def run(self) -> None:
        """Step for ever."""
        ends_s = time.monotonic()
        while True:
            if not self.waiting and not self.running:
                self._gpu.demand_w = self._curve.idle_w
                self._work.clear()
                await self._work.wait()
                ends_s = time.monotonic()
            batch = self.running[:MOST_BATCH]
            chunks = self._chunks(STEP_TOKENS - len(batch))
            self._gpu.demand_w = self._curve.prefill_w if chunks else self._curve.decode_w
            ends_s = max(ends_s, time.monotonic() - LATE_S) + self._takes_s(batch, [chunk for _, chunk in chunks])
            await asyncio.sleep(max(ends_s - time.monotonic(), 0))
            for leg, (new, _) in chunks:
                leg.computed += new
                if leg.computed >= leg.prompt:
                    self.waiting.remove(leg)
                    leg.done.set()
            for leg in batch:
                leg.made += 1
                leg.out.put_nowait(1)
                if leg.made >= leg.tokens:
                    self.running.remove(leg)

    def _chunks(self, tokens: int) -> list[tuple[Leg, tuple[int, int]]]:
        found = []
        for leg in self.waiting:
            if tokens <= 0:
                break
            new = min(leg.prompt - leg.computed, tokens)
            found.append((leg, (new, leg.computed)))
            tokens -= new
        return found

    def _takes_s(self, batch: list[Leg], chunks: list[tuple[int, int]]) -> float:
        slow_prefill, slow_decode = self._curve.slow(self._gpu.kept_w)
        context = sum(leg.prompt + leg.made for leg in batch) / max(len(batch), 1)
        decode_s = self._perf.decode_step_s(len(batch), context, 1) if batch else 0.0
        prefill_s = self._steps.prefill(chunks) if chunks else 0.0
        saved_s = self._steps.saved(sum(new for new, _ in chunks), len(batch)) if chunks and batch else 0.0
        return prefill_s * slow_prefill + max(decode_s - saved_s, 0.0) * slow_decode


class Server:
    """The part of SGLang's HTTP that a gateway needs."""

    def __init__(self, engine: Engine, rooms: Rooms, bootstrap_port: int, perf: TableModel) -> None:
        self._engine, self._rooms, self._port, self._perf = engine, rooms, bootstrap_port, perf

    async def start(self, port: int) -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/get_server_info", self._info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/abort_request", self._abort)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=30)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()

    async def _info(self, request: web.Request) -> web.Response:
        facts = {"disaggregation_mode": "decode", "disaggregation_bootstrap_port": self._port, "tp_size": 1}
        return web.json_response(facts | {"max_total_num_tokens": KV_TOKENS})

    async def _loads(self, request: web.Request) -> web.Response:
        engine = self._engine
        load = {"num_running_reqs": len(engine.running), "num_waiting_reqs": len(engine.waiting)}
        load |= {"num_waiting_uncached_tokens": sum(leg.prompt - leg.computed for leg in engine.waiting)}
        used = sum(leg.prompt + leg.made for leg in engine.running)
        load |= {"max_total_num_tokens": KV_TOKENS, "num_used_tokens": used, "timestamp": time.time_ns()}
        return web.json_response({"loads": [load]})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mock"}]})

    async def _abort(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = json.loads(await request.read())
        leg = Leg(len(body["prompt"]), body["max_tokens"])
        port, room = body.get("bootstrap_port"), body.get("bootstrap_room")
        if port == self._port:
            self._engine.prefill(leg)
            await leg.done.wait()
            await asyncio.sleep(self._perf.transfer_s(leg.prompt))
            self._rooms.moved(room).set()
            return web.json_response({"id": body["rid"], "choices": [], "usage": _usage(leg, 1)})
        if port is None:
            self._engine.prefill(leg)
            await leg.done.wait()
        else:
            await self._rooms.moved(room).wait()
            self._rooms.forget(room)
        return await self._stream(request, leg)

    async def _stream(self, request: web.Request, leg: Leg) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        leg.made = 1
        if leg.tokens > 1:
            self._engine.decode(leg)
        for _ in range(leg.tokens - 1):
            await response.write(TOKEN)
            await leg.out.get()
        last = {"id": "r", "choices": [{"index": 0, "finish_reason": "length", "text": "x"}]}
        await response.write(b"data: " + json.dumps(last | {"usage": _usage(leg, leg.tokens)}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _usage(leg: Leg, tokens: int) -> dict[str, int]:
    return {"prompt_tokens": leg.prompt, "completion_tokens": tokens, "total_tokens": leg.prompt + tokens}


async def serve(state: Path, profile: Path, first_port: int, count: int) -> None:
    """Serve until the process is stopped."""
    node, perf, rooms = mapped(state), TableModel(read_profile(profile)), Rooms()
    assert perf.tp_sizes(Role.PREFILL) == (1,)
    curve = power_curve(perf)
    tasks = []
    for gpu in range(count):
        engine = Engine(node, gpu, perf, curve)
        await Server(engine, rooms, first_port + 100 + gpu, perf).start(first_port + gpu)
        tasks.append(asyncio.create_task(engine.run()))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
