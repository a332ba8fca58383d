"""The least that a router in Python costs: both legs of a request, workers in turn, and nothing else.

It registers as the model, as our router does, and passes on the chunks of the answer as they come from Dynamo. It keeps
no books, and has no deadline, no retry, no policy and no metrics. What it costs is the price of the binding.

usage: python -m benchmarks.rig.bare NAMESPACE MODEL_PATH MODEL_NAME
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import uvloop
from dynamo.runtime import DistributedRuntime

from pdplugins.contracts.workers import Role
from pdplugins.hosts.dynamo.router.__main__ import register
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.places import first


async def serve(namespace: str, path: str, name: str) -> None:
    """Serve until the process is stopped."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")
    clients: dict[Role, Any] = {role: await runtime.endpoint(first(role).path).client() for role in Role}
    turns = count()

    async def leg(role: Role, turn: int, body: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        client = clients[role]
        ids = sorted(client.instance_ids())
        one = context.detached(f"{context.id()}-{role}")
        async for chunk in await client.direct(body, ids[turn % len(ids)], annotated=False, context=one):
            yield chunk

    async def generate(request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
        turn, handed = next(turns), None
        body = PreprocessedCall(request, context).prefill_only()
        async for chunk in leg(Role.PREFILL, turn, body, context):
            handed = chunk.get("disaggregated_params") or handed
        result = {"disaggregated_params": handed, "prompt_tokens_details": None}
        async for chunk in leg(Role.DECODE, turn, {**request, "prefill_result": result}, context):
            yield chunk

    endpoint = runtime.endpoint(f"{namespace}.router.generate")
    await register(endpoint, path, name)
    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
