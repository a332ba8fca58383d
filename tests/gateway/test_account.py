"""The access log as JSON: one object for each request, with what it came to."""

from __future__ import annotations

import asyncio
import json
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
from tests.gateway.rig import ask

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
