"""Clients cannot flood the log."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from pdplugins.gateway.logs import HTTP_LOG, Paced
from tests.gateway.rig import ask, stand
from tests.gateway.sockets import ends, sockets


@pytest.fixture(autouse=True)
def afresh() -> None:
    """The pace of the log is that of the process; each test has one of its own."""
    HTTP_LOG.filters[:] = [Paced()]


def test_requests_that_are_no_http_make_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with stand("dual") as it, sockets(it.gateway.url) as connect:
            for number in range(100):
                reader, writer = await connect()
                writer.write(b"POST /generate HTTP/1.1\r\nContent-Length: %dx\r\n\r\n" % number)
                assert b" 400 " in (await ends(reader))[:20]
            assert (await it.post("/generate", ask()))[0] == 200

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    (record,) = [record for record in caplog.records if record.name == HTTP_LOG.name]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 300
    assert "Content-Length" in record.getMessage()


@pytest.mark.parametrize("listener", ["url", "admin_url"])
def test_a_body_that_is_no_http_is_not_logged(listener: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of a chunk with a wrong end the whole line before it was logged."""

    async def run() -> bytes:
        async with stand("dual") as it, sockets(getattr(it.gateway, listener)) as connect:
            reader, writer = await connect()
            writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n10\r\na secret prompt.XX")
            return await ends(reader)

    with caplog.at_level(logging.INFO):
        said = asyncio.run(run())
    (record,) = [record for record in caplog.records if record.name == HTTP_LOG.name]
    assert record.getMessage().endswith("400, message: Expected LF after chunk data")
    assert json.loads(said.rpartition(b"\r\n")[2])["error"]["message"] == "Expected LF after chunk data"


def test_what_was_left_out_is_counted_in_the_next_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("pdplugins.gateway.logs.monotonic", lambda: now_s)
    for _ in range(3):
        HTTP_LOG.error("bad request from %s", "x")
    now_s += 11
    HTTP_LOG.error("bad request from %s", "y")
    assert [record.getMessage() for record in caplog.records] == [
        "bad request from x",
        "bad request from y (2 more since the last line)",
    ]


def test_what_is_not_served_is_an_error_object() -> None:
    async def run() -> None:
        async with stand("dual") as it:
            for method, path, status in (("GET", "/nowhere", 404), ("GET", "/generate", 405), ("POST", "/health", 405)):
                async with it.client.request(method, it.gateway.url + path, json={}) as answer:
                    assert answer.status == status
                    assert (await answer.json())["error"]["code"] == status

    asyncio.run(run())
