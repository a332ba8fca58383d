"""The access log as JSON: one object for each request, with what it came to."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import test_utils, web

from pdplugins.gateway.access.api_keys import new_key
from pdplugins.gateway.account import ACCOUNT, Account, JsonAccessLogger
from pdplugins.redaction import redacted
from tests.gateway.fake import FakeWorker, Rooms, settled
from tests.gateway.process import Running, running
from tests.gateway.rig import ask, patient, stand

pytestmark = pytest.mark.moderate


def lines(gateway: Running) -> list[dict[str, Any]]:
    """The JSON objects of the log; the rest of it is for people."""
    return [json.loads(line) for line in gateway.said.splitlines() if line.startswith("{")]


def test_a_name_that_looks_like_a_secret_spoils_no_line() -> None:
    said: list[str] = []
    request = test_utils.make_mocked_request("POST", "/generate?api_key=x")
    request[ACCOUNT] = Account("password: 'x", "y', z", stream=True)
    log = JsonAccessLogger(SimpleNamespace(info=said.append), "")
    log.log(request, web.Response(), 1.0)
    line = json.loads(redacted(said[0]))
    assert (line["request"], line["model"]) == ("password: ***", "y', z")


def test_no_request_takes_less_than_its_first_token() -> None:
    """The clock of uvloop, with which aiohttp measures requests, counts whole milliseconds."""
    said: list[str] = []
    request = test_utils.make_mocked_request("POST", "/generate")
    request[ACCOUNT] = Account("x", "y", stream=True, ttft_s=0.002094)
    log = JsonAccessLogger(SimpleNamespace(info=said.append), "")
    log.log(request, web.Response(), 0.002)
    log.log(request, web.Response(), 0.003)
    assert [json.loads(line)["took_s"] for line in said] == [0.002094, 0.003]


def test_each_request_is_a_json_object(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = new_key(keys, "alice", admin=False)

    async def run() -> None:
        rooms = Rooms()
        workers = [await FakeWorker(mode, rooms, 9000 + n).start() for n, mode in enumerate(("prefill", "decode"))]
        options = ("--set", "access_log_json=true", "--api-keys", str(keys))
        headers = {"Authorization": f"Bearer {key}"}
        async with running(workers, tmp_path, *options) as gateway, aiohttp.ClientSession() as client:

            async def asked(path: str, body: Any, more: dict[str, str] = headers) -> None:
                await (await client.post(gateway.url + path, json=body, headers=more)).read()

            await asked("/generate", ask(rid="mine", stream=True))
            await asked("/v1/completions", {"model": "fake", "prompt": "Hello\n{", "max_tokens": 3})
            await asked("/v1/completions?key=" + key, {"model": 7})
            await asked("/generate", ask(), {})
            assert await settled(lambda: len(lines(gateway)) == 4)
            stream, whole, bad, stranger = lines(gateway)
            assert key not in gateway.said
        pair = [worker.id for worker in workers]
        common = {"client": "127.0.0.1", "method": "POST"}
        assert stream.items() >= (common | {"key": "alice", "path": "/generate", "status": 200}).items()
        assert [stream[name] for name in ("request", "outcome", "stream", "workers")] == ["mine", "ok", True, pair]
        assert (stream["prompt_tokens"], stream["output_tokens"]) == (60, 9)
        assert 0 < stream["ttft_s"] <= stream["took_s"]
        assert stream["tpot_s"] >= 0
        assert stream["bytes"] > 100
        assert (whole["model"], whole["output_tokens"], whole["stream"]) == ("fake", 3, False)
        assert "ttft_s" not in whole
        assert (bad["status"], "request" in bad) == (400, False)
        assert (stranger["status"], "key" in stranger) == (401, False)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["access_log", "access_log_json"])
def test_a_request_whose_client_leaves_is_logged_once(
    form: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With nginx's status for that. The next request is logged too, so a second line of the first would be there."""
    caplog.set_level(logging.INFO, "pdplugins.gateway.access")

    async def run() -> None:
        async with stand("unified", token_s=0.05, settings=patient(**{form: True})) as it:
            body = ask(rid="left", stream=stream, count=100)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(it.post("/generate", body), 1.0)
            assert await settled(it.idle)
            await it.post("/generate", ask(rid="stays", count=1))
            assert await settled(lambda: len(caplog.messages) == 2)

    asyncio.run(run())
    left, stays = caplog.messages
    if form == "access_log":
        assert '"POST /generate HTTP/1.1" 499 ' in left
        assert '"POST /generate HTTP/1.1" 200 ' in stays
        return
    line = json.loads(left)
    assert [line[name] for name in ("request", "outcome", "status")] == ["left", "cancelled", 499]
    assert line["took_s"] >= 0.4
    assert 0 < line["output_tokens"] < 100 if stream else line["output_tokens"] == 0
    assert (line["bytes"] > 100) == stream
    assert json.loads(stays)["status"] == 200


def test_a_request_that_breaks_off_in_its_body_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pdplugins.gateway.access")
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"

    async def run() -> None:
        async with stand("unified", settings=patient(access_log_json=True)) as it:
            _, writer = await asyncio.open_connection("127.0.0.1", int(it.gateway.url.rpartition(":")[2]))
            writer.write(head)
            assert await settled(lambda: it.gateway.admission.requests == 1)
            writer.close()
            assert await settled(lambda: bool(caplog.messages))

    asyncio.run(run())
    (line,) = map(json.loads, caplog.messages)
    assert (line["status"], "request" in line) == (499, False)
