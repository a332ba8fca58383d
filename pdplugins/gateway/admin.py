"""What operators can ask of a gateway, on a listener of its own: its workers, its metrics, other roles for workers."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import generate_latest

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.workers import Role
from pdplugins.errors import one_line
from pdplugins.gateway.access.gate import Gate
from pdplugins.gateway.backends import Backend, Backends
from pdplugins.gateway.clients import Clients
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.gateway.replies import failure
from pdplugins.redaction import redacted

LOAD_FIELDS = (
    "queued_requests",
    "queued_tokens",
    "running_requests",
    "running_tokens",
    "recent_ttft_s",
    "recent_tbt_s",
)


MOST_MOVES = 1024
"""Proposals of one request."""
MOST_BODY = 2**18
"""Bytes of the body of one request."""


class Proposal(msgspec.Struct):
    """One worker should change its role."""

    worker: Annotated[str, msgspec.Meta(max_length=300)]
    role: Role
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Proposals(msgspec.Struct):
    """The body of ``/roles``."""

    moves: Annotated[list[Proposal], msgspec.Meta(max_length=MOST_MOVES)]


class Admin:
    """The admin endpoints of one gateway.

    :param gate: the checks of their listener.
    :param clients: its connections.
    :param body_s: how long the body of a request may take.
    """

    def __init__(
        self, backends: Backends, metrics: GatewayMetrics, gate: Gate, clients: Clients, body_s: float
    ) -> None:
        self._body_s = body_s
        self._clients = clients
        self._backends = backends
        self._metrics = metrics
        self._gate = gate

    def app(self) -> web.Application:
        """Return them all as one application."""
        app = web.Application(client_max_size=MOST_BODY, middlewares=[self._clients.around, self._checked])
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_post("/roles", self._propose_roles)
        return app

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._gate.check(request)
            return await handler(request)
        except GatewayError as error:
            return failure(error)
        except web.HTTPException as error:
            return failure(GatewayError(error.status, error.reason))

    async def _workers(self, request: web.Request) -> web.Response:
        """Show the workers as the router sees them."""
        shown = json.dumps([_shown(backend) for backend in self._backends.all])
        return web.Response(text=redacted(shown), content_type="application/json")

    async def _propose_roles(self, request: web.Request) -> web.Response:
        """Take proposals of a power controller, and show the roles that follow from them."""
        try:
            async with asyncio.timeout(self._body_s):
                body = await request.read()
        except TimeoutError:
            raise GatewayError(408, f"the body was not there after {self._body_s:g} s") from None
        except web.RequestPayloadError:
            raise GatewayError(400, "the body is not what its head says") from None
        try:
            moves = msgspec.json.decode(body, type=Proposals).moves
        except (msgspec.MsgspecError, RecursionError) as error:
            raise GatewayError(400, f'send {{"moves": [{{"worker": ID, "role": ROLE}}]}}: {one_line(error)}') from None
        self._backends.labels.propose([RoleMove(m.worker, m.role, one_line(m.reason)) for m in moves], Kind.POWER)
        roles = {backend.id: backend.view.role for backend in self._backends.all if backend.alive}
        return web.Response(text=json.dumps({"roles": roles}), content_type="application/json")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        self._metrics.clear_loads()  # of workers that have gone
        for backend in self._backends.all:
            view = backend.view
            load = {name: value for name in LOAD_FIELDS if (value := getattr(view.load, name)) is not None}
            if view.free_kv_tokens is not None:
                load["free_kv_tokens"] = view.free_kv_tokens
            self._metrics.load(backend.id, load | {"alive": float(backend.alive)})
        page = redacted(generate_latest(self._metrics.registry).decode())
        return web.Response(text=page, content_type="text/plain")


def _shown(backend: Backend) -> dict[str, object]:
    view = backend.view
    load = {name: getattr(view.load, name) for name in LOAD_FIELDS}
    facts = {"id": backend.id, "kind": backend.kind, "alive": backend.alive, "role": view.role, "tp": view.tp}
    return facts | {
        "bootstrap_port": backend.bootstrap_port,
        "kv_capacity_tokens": view.kv_capacity_tokens,
        "free_kv_tokens": view.free_kv_tokens,
        "load": load,
    }
