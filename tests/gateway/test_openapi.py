"""The OpenAPI document says what the gateway serves, and the gateway does what the document says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from pdplugins.gateway.openapi import document, routes
from tests.gateway.fake import settled
from tests.gateway.rig import Stand, patient, stand

EXAMPLES = 8
"""Of each operation and kind."""
MOST_TOKENS = 40
"""Output tokens of one request, so that answers are short."""
HELD = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
"""Schemathesis's checks. Others want an API that refuses whatever its document does not name."""


def shortened(said: Any) -> Any:
    """Return a document in which each number of output tokens is small."""
    if isinstance(said, list):
        return [shortened(one) for one in said]
    if not isinstance(said, dict):
        return said
    names = said.keys() & {"max_tokens", "max_new_tokens"}
    return {key: {**one, "maximum": MOST_TOKENS} if key in names else shortened(one) for key, one in said.items()}


async def with_document(work: Callable[[Stand, dict[str, Any]], Any]) -> Any:
    async with stand("dual", "dual", settings=patient(retries=0)) as it:
        async with it.client.get(it.gateway.url + "/openapi.json") as answer:
            assert answer.status == 200
            said = await answer.json()
        found = await asyncio.to_thread(work, it, said)
        assert await settled(it.idle)
        assert it.faults["gateway_error"] == 0
        for worker in it.workers:
            worker.rooms.mismatches.clear()
        return found


def test_every_route_is_in_the_document_and_is_served() -> None:
    def look(it: Stand, said: dict[str, Any]) -> None:
        app = it.gateway._runner.app
        written = {(path, method) for path, methods in said["paths"].items() for method in methods}
        assert written == routes(app)
        assert ("/v1/chat/completions", "post") in written
        app._frozen = False
        app.router._frozen = False
        app.router.add_get("/of-which-nothing-is-written", web.Application()._handle)
        with pytest.raises(KeyError):
            document(app)

    asyncio.run(with_document(look))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["POSITIVE", "NEGATIVE"])
def test_what_the_document_says_holds_for_generated_requests(kind: str) -> None:
    """No fault of the server, no status, type or content that the document does not name."""
    schemathesis = pytest.importorskip("schemathesis", reason="make setup installs it")
    held = [getattr(schemathesis.checks, name) for name in HELD]
    mode = schemathesis.GenerationMode[kind]

    def generate(it: Stand, said: dict[str, Any]) -> int:
        schema = schemathesis.openapi.from_dict(shortened(said))
        sent = 0
        for operation in schema.get_all_operations():

            @settings(
                max_examples=EXAMPLES,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                deadline=None,
                database=None,
            )
            @given(case=operation.ok().as_strategy(generation_mode=mode))
            def one(case: Any) -> None:
                nonlocal sent
                sent += 1
                case.call_and_validate(base_url=it.gateway.url, checks=held, timeout=60)

            with contextlib.suppress(Unsatisfiable):  # where nothing can be given, nothing can be wrong
                one()
        return sent

    assert asyncio.run(with_document(generate)) > EXAMPLES
