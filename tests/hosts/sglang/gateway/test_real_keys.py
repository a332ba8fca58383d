"""Real SGLang servers that want keys, behind a gateway that has them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from benchmarks.rig import servers
from benchmarks.rig.servers import Server
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import WorkerOption
from pdplugins.processes.child import SECRET_ARGUMENTS
from tests.gateway.fake import settled
from tests.gateway.rig import ask, config

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

KEY, ADMIN = "the-key-of-the-servers", "the-key-of-their-admin"


@pytest.fixture(params=servers.trees(), ids=servers.version_of)
def server(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[Server]:
    secrets = json.dumps(["--api-key", KEY, "--admin-api-key", ADMIN])
    environment = {SECRET_ARGUMENTS: secrets}
    with Server(request.param, model, tmp_path / "server.log", env=environment) as server:
        yield server


async def serves(server: Server) -> bool:
    async with aiohttp.ClientSession() as client:
        for _ in range(600):
            assert server.runs, server.tail()
            try:
                async with client.get(server.url + "/v1/models", headers={"Authorization": f"Bearer {KEY}"}) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                await asyncio.sleep(0.5)
    return False


def test_a_server_with_keys_serves_a_gateway_that_has_them(server: Server) -> None:
    """Whole answers, streams, what any server may answer, and aborts; its log and command line hold no key."""

    async def run() -> None:
        assert await serves(server)
        access = Access(worker_keys=WorkerKeys(WorkerKey(KEY, ADMIN)))
        gateway = Gateway(config(dual=False), [WorkerOption.parse(server.url)], access=access)
        await gateway.start()
        async with aiohttp.ClientSession() as client:
            assert await settled(lambda: bool(gateway.backends.ready))
            async with client.post(gateway.url + "/generate", json=ask()) as answer:
                assert answer.status == 200
                assert len((await answer.json())["output_ids"]) == 9
            async with client.post(gateway.url + "/v1/tokenize", json={"prompt": "a b"}) as answer:
                assert (await answer.json())["tokens"]
            async with client.get(gateway.url + "/server_info") as answer:
                said = await answer.text()
                assert json.loads(said)["version"] == servers.version_of(server.tree)
                assert str(server.model.parent) not in said
                assert KEY not in said
                assert ADMIN not in said
            stream = await client.post(gateway.url + "/generate", json=ask(count=8000, stream=True))
            await stream.content.readany()
            stream.close()
            (backend,) = gateway.backends.all
            assert await settled(lambda: backend.view.load.running_requests > 0, 60)
            assert await settled(lambda: backend.view.load.running_requests == 0, 60)
        await gateway.stop()

    asyncio.run(run())
    log = server.log.read_text()
    assert "server_args=" in log
    lines = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    for secret in (KEY, ADMIN):
        assert secret not in log
        assert secret not in lines
    assert os.environ.get(SECRET_ARGUMENTS) is None
