"""Traces: a span of the gateway for each request, between the client's and the workers'."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from aiohttp import web

from pdplugins.errors import ConfigError
from pdplugins.gateway.tracing import Tracing, build_tracing
from tests.gateway.fake import FakeWorker, Rooms, settled
from tests.gateway.rig import PROMPT, Fixed, ask, over, stand

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Traced(FakeWorker):
    """A worker that notes the traceparent of each request that has one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.traces: set[str] = set()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.traces.add(request.headers.get("traceparent", "none"))
        return await super()._serve(request)


def kept() -> tuple[Tracing, Any]:
    """Tracing with the real SDK, and where its spans are kept."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install 'pdplugins[otel]'")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    return Tracing(provider), memory


def hexed(number: int, digits: int) -> str:
    return f"{number:0{digits}x}"


def test_a_span_is_the_clients_child_and_the_workers_parent() -> None:
    tracing, memory = kept()

    async def run() -> None:
        rooms = Rooms()
        workers = [await Traced("dual", rooms, 9000 + n).start() for n in range(2)]
        async with over(workers, tracing=tracing) as it:
            it.route(Fixed())
            async with it.client.post(
                it.gateway.url + "/generate", json=ask(rid="mine", stream=True), headers=CLIENT
            ) as answer:
                await answer.read()
            heard = {trace for worker in workers for trace in worker.traces}
        (span,) = memory.get_finished_spans()
        assert hexed(span.context.trace_id, 32) == TRACE
        assert hexed(span.parent.span_id, 16) == PARENT
        assert heard == {f"00-{TRACE}-{hexed(span.context.span_id, 16)}-01"}
        assert (span.name, span.kind.name, span.status.status_code.name) == ("POST /generate", "SERVER", "UNSET")
        told = dict(span.attributes)
        assert told["pdplugins.outcome"] == "ok"
        assert told["pdplugins.workers"] == tuple(worker.id for worker in it.workers)
        assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (len(PROMPT), 9)
        assert 0 < told["gen_ai.server.time_to_first_token"] <= (span.end_time - span.start_time) / 1e9
        assert told["gen_ai.response.id"] == "mine"

    asyncio.run(run())


def test_headers_that_cannot_be_read_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    tracing, memory = kept()

    async def run() -> None:
        async with stand("unified", tracing=tracing) as it:
            for _ in range(5):
                headers = CLIENT | {"tracestate": "no pair " * 400}
                async with it.client.post(it.gateway.url + "/generate", json=ask(), headers=headers) as answer:
                    assert answer.status == 200

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")]
    assert len(memory.get_finished_spans()) == 5
    assert len(said) <= 1
    assert all(len(line) < 300 for line in said)


def test_a_request_that_fails_is_an_error_of_its_span_and_one_of_the_client_is_not() -> None:
    tracing, memory = kept()

    async def run() -> None:
        async with stand("unified", tracing=tracing) as it:
            it.workers[0].faults.status = 500
            assert (await it.post("/generate", ask()))[0] == 502
            assert (await it.post("/generate", {"input_ids": [1], "model": 7}))[0] == 400

    asyncio.run(run())
    broken, wrong = memory.get_finished_spans()
    assert (broken.status.status_code.name, broken.attributes["pdplugins.outcome"]) == ("ERROR", "error_502")
    assert (wrong.status.status_code.name, wrong.attributes["pdplugins.outcome"]) == ("UNSET", "error_400")
    assert broken.parent is None


@pytest.mark.moderate
def test_a_collector_gets_the_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")

    async def run() -> None:
        got: list[bytes] = []

        async def collect(request: web.Request) -> web.Response:
            got.append(await request.read())
            return web.Response()

        app = web.Application()
        app.router.add_post("/v1/traces", collect)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        tracing = build_tracing(f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces")
        async with stand("unified", tracing=tracing) as it:
            assert (await it.post("/generate", ask()))[0] == 200
            assert await settled(lambda: got)
            await tracing.stop(60.0)
            await asyncio.sleep(0)
        await runner.cleanup()
        (spans,) = trace.ExportTraceServiceRequest.FromString(got[0]).resource_spans
        assert any(one.value.string_value == "pdplugins-gateway" for one in spans.resource.attributes)
        assert spans.scope_spans[0].spans[0].name == "POST /generate"

    asyncio.run(run())


def test_a_collector_that_hangs_does_not_keep_the_process() -> None:
    class Hanging:
        def __init__(self) -> None:
            self.ended = threading.Event()

        def shutdown(self) -> None:
            self.ended.wait(60)

    provider = Hanging()
    asyncio.run(Tracing(provider).stop(0.01))
    assert not provider.ended.is_set()
    provider.ended.set()


def test_without_opentelemetry_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[otel\]' in a checkout"):
        build_tracing("http://127.0.0.1:4318/v1/traces")
    with pytest.raises(ConfigError, match="--otlp"):
        build_tracing("127.0.0.1:4318")
