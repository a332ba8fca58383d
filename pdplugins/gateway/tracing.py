"""Traces of requests for OpenTelemetry: a span of the gateway, child of the client's and parent of the workers'.

OpenTelemetry is an extra. Its own variables choose the rest: OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_EXPORTER_OTLP_HEADERS and so on. Spans are sent from a thread of its own, and dropped where the collector is slow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from aiohttp import web

import pdplugins
from pdplugins import extras
from pdplugins.errors import ConfigError
from pdplugins.gateway.account import Account, request_key
from pdplugins.gateway.logs import Paced
from pdplugins.processes.addresses import check_url

SPAN = request_key("span", object)
"""Key of a request under which its span is."""
SERVICE = "pdplugins-gateway"

logging.getLogger("opentelemetry.trace.span").addFilter(Paced())  # it repeats headers of clients that it cannot read


@dataclass(frozen=True)
class Tracing:
    """Makes the spans of one gateway.

    :param provider: OpenTelemetry's ``TracerProvider``; `stop` shuts it down.
    """

    provider: Any

    def begin(self, request: web.BaseRequest) -> None:
        """Begin the span of a request, as a child of the span that its headers name."""
        api = import_module("opentelemetry.trace")
        parent = _propagator().extract({name.lower(): value for name, value in request.headers.items()})
        tracer = self.provider.get_tracer("pdplugins.gateway", pdplugins.__version__)
        asked = {"http.request.method": request.method, "url.path": request.path}
        request[SPAN] = tracer.start_span(
            f"{request.method} {request.path}", context=parent, kind=api.SpanKind.SERVER, attributes=asked
        )

    def headers(self, request: web.BaseRequest) -> dict[str, str]:
        """Return the headers that make the spans of workers children of the request's."""
        api, carrier = import_module("opentelemetry.trace"), dict[str, str]()
        _propagator().inject(carrier, api.set_span_in_context(request[SPAN]))
        return carrier

    def end(self, request: web.BaseRequest, outcome: str, account: Account | None) -> None:
        """End the span of a request, with what it came to."""
        span = request[SPAN]
        told: dict[str, Any] = {"pdplugins.outcome": outcome}
        if account is not None:
            told |= {
                "gen_ai.request.model": account.model,
                "gen_ai.response.id": account.request,
                "gen_ai.usage.input_tokens": account.prompt_tokens,
                "gen_ai.usage.output_tokens": account.output_tokens,
                "gen_ai.server.time_to_first_token": account.ttft_s,
                "gen_ai.server.time_per_output_token": account.tpot_s,
                "pdplugins.workers": list(account.workers),
            }
        span.set_attributes({name: value for name, value in told.items() if value is not None})
        if outcome.startswith("error_5"):
            api = import_module("opentelemetry.trace")
            span.set_status(api.Status(api.StatusCode.ERROR, outcome))
        span.end()

    async def stop(self, within_s: float) -> None:
        """Send the spans that are left, as far as there is time for it."""
        loop = asyncio.get_running_loop()
        sent = asyncio.Event()

        def send() -> None:
            self.provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended, since there was no time
                loop.call_soon_threadsafe(sent.set)

        # A thread that nobody waits for: a collector that hangs must not keep the process.
        threading.Thread(target=send, daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await sent.wait()


def _propagator() -> Any:
    return import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()


def build_tracing(url: str) -> Tracing:
    """Return what sends spans to an OTLP collector over HTTP. Raises ConfigError.

    :param url: of its traces, such as ``http://127.0.0.1:4318/v1/traces``.
    """
    check_url(url, "--otlp")
    try:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise ConfigError(f"--otlp: OpenTelemetry is not installed; {extras.how('otel')}") from None
    resource = import_module("opentelemetry.sdk.resources").Resource
    name = os.environ.get("OTEL_SERVICE_NAME", SERVICE)
    provider = sdk.TracerProvider(resource=resource.create({"service.name": name}), shutdown_on_exit=False)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=url)))
    return Tracing(provider)
