"""What a request must be, who may see what, and the options that say so."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, HostError
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.api_keys import ApiKeys, new_key
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import WorkerOption
from tests.gateway.access.rig import ADMIN, KEY, bearer, status_of, with_key, workers
from tests.gateway.rig import ask, config, over, stand


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/tokenize"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/octet-stream", ""]
)
def test_a_post_is_json(path: str, kind: str) -> None:
    """A page of any site can have a browser send anything else to this machine, unasked."""

    async def run() -> None:
        async with stand("unified") as it:
            body = json.dumps(ask()).encode()
            async with it.client.post(it.gateway.url + path, data=body, headers={"Content-Type": kind}) as answer:
                assert answer.status == 415
                assert "Content-Type: application/json" in (await answer.json())["error"]["message"]
            assert not it.workers[0].seen

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_may_say_its_charset(kind: str) -> None:
    async def run() -> None:
        async with stand("unified") as it:
            body = json.dumps(ask()).encode()
            async with it.client.post(
                it.gateway.url + "/generate", data=body, headers={"Content-Type": kind}
            ) as answer:
                assert answer.status == 200

    asyncio.run(run())


def test_no_type_of_a_body_takes_long_or_is_a_fault_of_the_gateway() -> None:
    """Each of these semicolons took half a second of the loop, and the brackets were answered with 500."""

    async def run() -> None:
        async with stand("unified") as it:
            began_s = time.process_time()
            for kind, status in [
                *((f"application/json{';' * (8_000 - number)}", 200) for number in range(8)),
                (f"text/plain;{'(' * 8_000}", 415),
                ("(" * 8_000, 415),
                ("application/json (", 415),
                ("text/plain; application/json", 415),
            ]:
                body, headers = json.dumps(ask(count=1)).encode(), {"Content-Type": kind}
                async with it.client.post(it.gateway.url + "/generate", data=body, headers=headers) as answer:
                    assert answer.status == status, await answer.read()
            assert time.process_time() - began_s < 2.0
            assert it.faults["gateway_error"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/model_info", "/get_model_info"])
def test_clients_do_not_get_what_is_no_business_of_theirs(path: str) -> None:
    """The fields that stay are named; a secret of a later SGLang stays here as well."""
    said = {"version": "0.5.23", "api_key": KEY, "admin_api_key": ADMIN, "ssl_keyfile": "/etc/key.pem"}
    said |= {"model_path": "/models/of/a/user/tiny", "tokenizer_path": "/models/x", "new_secret": "zzz", "tp_size": 2}
    said |= {"internal_states": [{"api_key": KEY}], "weight_version": "7", "host": "10.0.0.7", "is_generation": True}

    async def run() -> None:
        async with over(await workers("unified"), access=with_key()) as it:
            it.workers[0].says[path] = json.dumps(said).encode()
            async with it.client.get(it.gateway.url + path) as answer:
                text = await answer.text()
                shown = json.loads(text) if answer.status == 200 else {}
            for hidden in (KEY, ADMIN, "/", "zzz", "10.0.0.7"):
                assert hidden not in text
            if path == "/server_info":
                assert shown == {"version": "0.5.23", "model_path": "tiny", "tp_size": 2}

    asyncio.run(run())


def test_operators_have_a_listener_of_their_own() -> None:
    async def run() -> None:
        async with stand("unified") as it:
            for path in ("/workers", "/metrics"):
                assert await status_of(it, "GET", path) == 404
                async with it.client.get(it.gateway.admin_url + path) as answer:
                    assert answer.status == 200
            for path in ("/generate", "/health", "/v1/models"):
                async with it.client.get(it.gateway.admin_url + path) as answer:
                    assert answer.status == 404

    asyncio.run(run())


def test_beyond_this_machine_they_need_an_admin_key(keys: Path) -> None:
    alice, root = (new_key(keys, name, admin=name == "root") for name in ("alice", "root"))
    with pytest.raises(ConfigError, match=r"^--admin-host 0\.0\.0\.0: others can reach it.*give --api-keys"):
        Access(admin_host="0.0.0.0")  # noqa: S104 - refused
    access = Access(admin_host="0.0.0.0", api_keys=ApiKeys(keys))  # noqa: S104 - with keys

    async def run() -> None:
        async with stand("unified", access=access) as it:
            url = it.gateway.admin_url.replace("0.0.0.0", "127.0.0.1") + "/workers"  # noqa: S104
            for headers, expected in (({}, 401), (bearer("x"), 401), (bearer(alice), 403), (bearer(root), 200)):
                async with it.client.get(url, headers=headers) as answer:
                    assert answer.status == expected
            assert await status_of(it, "GET", "/v1/models", bearer(root)) == 200

    asyncio.run(run())


def test_a_port_that_is_taken_is_one_line_and_nothing_stays() -> None:
    async def run() -> None:
        async with stand("unified") as it:
            port = int(it.gateway.url.rpartition(":")[2])
            with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port} .*choose another port"):
                async with stand("unified", access=Access(admin_port=port)):
                    pass
            await it.workers[0].stop()

    asyncio.run(run())


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_one_line_and_no_matter_of_ports(host: str) -> None:
    async def run() -> None:
        gateway = Gateway(config(), [])
        with pytest.raises(HostError, match=f"^gateway: cannot listen on {host}:0 .*{host} is no address of this mach"):
            await gateway.start(host)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://[::1", "is no URL"),
        ("http://127.0.0.1:99999", "is no URL"),
        ("http://user:hunter2@127.0.0.1:30000", "leave user and password out"),
        ("http://127.0.0.1:1,bootstrap_port=" + "9" * 5000, "roles are prefill and decode"),
        ("http://127.0.0.1:1,role=\n" + "x" * 5000, "roles are prefill and decode"),
        ("http://127.0.0.1:1,x\ny=1", "known are bootstrap_port, role and kind"),
    ],
)
def test_a_wrong_worker_is_one_short_line_without_its_password(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        WorkerOption.parse(text)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 700
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("host", "worker", "warned"),
    [
        ("127.0.0.1", "http://127.0.0.1:1", 0),
        ("0.0.0.0", "http://127.0.0.1:1", 1),  # noqa: S104 - only asked about
        ("127.0.0.1", "http://10.0.0.7:1", 1),
        ("127.0.0.1", "https://10.0.0.7:1", 0),
    ],
)
def test_keys_that_cross_the_network_in_plain_text_are_said(
    host: str, worker: str, warned: int, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_key(keys, "alice", admin=False)
    access = Access(worker_keys=WorkerKeys(WorkerKey(KEY)), api_keys=ApiKeys(keys))
    access.warn(host, [worker])
    assert len(caplog.messages) == warned
