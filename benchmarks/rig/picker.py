"""A sketch: the router decides, and Dynamo's frontend carries the tokens.

It answers ``GET /pick`` with the two headers by which a request tells Dynamo's frontend which workers shall serve it. A
proxy that asks another server before it passes a request on (nginx's ``auth_request``, Envoy's external authorization)
can ask this one. It picks in turn, as the ``round-robin`` router does. A real one would keep books; it could learn them
only from the workers' reports and the proxy's log, and it could not choose local prefill.

usage: python -m benchmarks.rig.picker PORT
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from typing import Any

import uvloop
from aiohttp import web
from dynamo.runtime import DistributedRuntime

from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.router.places import first

HEADERS = {Role.PREFILL: "x-dynamo-prefill-instance-id", Role.DECODE: "x-dynamo-worker-instance-id"}


async def serve(port: int) -> None:
    """Serve until the process is stopped."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    clients: dict[Role, Any] = {role: await runtime.endpoint(first(role).path).client() for role in Role}
    turns = count()

    async def pick(request: web.Request) -> web.Response:
        workers = {role: sorted(client.instance_ids()) for role, client in clients.items()}
        if not all(workers.values()):
            return web.Response(status=503)
        turn = next(turns)
        return web.Response(headers={HEADERS[role]: str(ids[turn % len(ids)]) for role, ids in workers.items()})

    app = web.Application()
    app.router.add_get("/pick", pick)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
