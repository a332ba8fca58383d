"""TLS for clients and workers."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from pdplugins.errors import ConfigError
from pdplugins.gateway.access.access import Access, read_access
from pdplugins.gateway.access.tls import ServerTls, worker_tls
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys
from pdplugins.gateway.clients import LEAST_IDLE_S, MOST_REFUSED
from tests.gateway.access.rig import KEY, with_key
from tests.gateway.certificates import EC, RSA, Authority
from tests.gateway.fake import FakeWorker, Rooms, settled
from tests.gateway.rig import Stand, ask, fast, over, patient, stand


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("gateway")


def test_clients_and_workers_speak_tls(authority: Authority, certificate: tuple[Path, Path]) -> None:
    async def run() -> None:
        (worker,) = found = [FakeWorker("unified", Rooms(), 9000)]
        worker.tls = ServerTls(*certificate).context
        worker.key = KEY
        await worker.start()
        trusts = ssl.create_default_context(cafile=str(authority.certificate))
        access = Access(
            worker_keys=WorkerKeys(WorkerKey(KEY)),
            worker_ca=worker_tls(authority.certificate),
            tls=ServerTls(*certificate),
        )
        async with over(found, access=access, trusts=trusts) as it:
            assert it.gateway.url.startswith("https://127.0.0.1:")
            assert (await it.post("/generate", ask()))[0] == 200
            assert len(await it.stream("/generate", ask())) == 9
            async with it.client.get(it.gateway.admin_url + "/workers") as answer:
                assert (await answer.json())[0]["alive"] is True
            async with aiohttp.ClientSession() as stranger:
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await stranger.get(it.gateway.url + "/health")
                with pytest.raises(aiohttp.ClientError):
                    await stranger.get(it.gateway.url.replace("https", "http") + "/health")

    asyncio.run(run())


def test_a_worker_with_a_certificate_of_a_stranger_gets_nothing(
    authority: Authority, certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Not even the key."""

    async def run() -> None:
        (worker,) = found = [FakeWorker("unified", Rooms(), 9000)]
        worker.tls = ServerTls(*certificate).context
        await worker.start()
        async with over(found, access=with_key()) as it:
            assert await settled(lambda: it.faults["poll_missed"] > 2)
            assert (await it.post("/generate", ask()))[0] == 503
            assert not worker.given

    asyncio.run(run())
    told = [line for line in caplog.messages if "is not there" in line]
    assert len(told) == 1
    assert "certificate verify failed" in told[0].lower()


@pytest.mark.parametrize("kind", [EC, RSA], ids=["the same kind of key", "another kind"])
def test_a_new_certificate_is_used_from_the_next_connection_on(
    authority: Authority, tmp_path: Path, kind: Sequence[str]
) -> None:
    first, second = authority.sign("first"), authority.sign("second", kind=kind)
    files = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(pair: tuple[Path, Path]) -> None:
        for target, source in zip(files, pair, strict=True):
            target.write_bytes(source.read_bytes())

    put(first)
    tls = ServerTls(*files)
    access = Access(tls=tls)

    async def name(port: int) -> str:
        trusts = ssl.create_default_context(cafile=str(authority.certificate))
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusts)
        found = writer.get_extra_info("peercert")["subject"][0][0][1]
        writer.close()
        return str(found)

    async def run() -> None:
        async with stand("unified", access=access) as it:
            port = int(it.gateway.url.rpartition(":")[2])
            assert await name(port) == "first"
            put(second)
            access.reload()
            assert await name(port) == "second"
            files[1].write_text("no key")
            access.reload()
            assert await name(port) == "second"
            put((first[0], second[1]))  # as between the writing of the one file and of the other
            access.reload()
            assert await name(port) == "second"

    asyncio.run(run())


def test_a_client_that_does_not_finish_its_handshake_is_cut_off(certificate: tuple[Path, Path]) -> None:
    """Against a control: the same deadline for the head of a request over plain HTTP."""

    async def closed(it: Stand) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(it.gateway.url.rpartition(":")[2]))
        writer.write(b"\x16\x03\x01")  # the beginning of a TLS record
        with suppress(ConnectionResetError):
            said = await asyncio.wait_for(reader.read(), 10)  # until it is closed
            assert b"200" not in said
        writer.close()

    async def run() -> None:
        for access in (Access(), Access(tls=ServerTls(*certificate))):
            async with stand("unified", access=access, settings=fast(head_s=0.3)) as it:
                await closed(it)

    asyncio.run(run())


async def silent(it: Stand, number: int) -> list[asyncio.StreamWriter]:
    """Open connections that begin no handshake."""
    port = int(it.gateway.url.rpartition(":")[2])
    return [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(number)]


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_connections_count_before_their_handshakes_end(
    authority: Authority, certificate: tuple[Path, Path], run_loop: Any
) -> None:
    """One too many is told so after its handshake, as over plain HTTP; a handshake that fails gives its place back."""

    async def run() -> None:
        trusts = ssl.create_default_context(cafile=str(authority.certificate))
        settings = patient(max_connections_per_client=4, head_s=60)
        async with stand("unified", access=Access(tls=ServerTls(*certificate)), settings=settings, trusts=trusts) as it:
            there = it.gateway.clients
            opened = await silent(it, 4)
            assert await settled(lambda: there._by_client["127.0.0.1"] == 4)
            for connection in there._all.values():
                connection.since_s += 3600  # none has been idle for long, so that none makes way
            assert (await it.post("/generate", ask()))[0] == 503
            assert it.gateway.metrics._overloads.labels("connections_per_client")._value.get() == 1
            opened[0].write(b"no TLS")
            opened[1].close()
            assert await settled(lambda: there._by_client["127.0.0.1"] == 2)
            assert (await it.post("/generate", ask()))[0] == 200
            for writer in opened:
                writer.close()
            await it.client.close()
            assert await settled(lambda: not there._all)
            assert not there._idle
            assert not there._by_client
            assert there._refused == 0

    run_loop(run())


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_a_client_that_does_not_answer_the_end_of_tls_keeps_no_connection(
    authority: Authority, certificate: tuple[Path, Path], run_loop: Any
) -> None:
    """Connections that are closed do not count. So they must not stay until such a client says that it has heard."""

    async def run() -> None:
        loop, trusts = asyncio.get_running_loop(), ssl.create_default_context(cafile=str(authority.certificate))
        async with stand("unified", access=Access(tls=ServerTls(*certificate)), settings=patient(head_s=60)) as it:
            with socket.create_connection(("127.0.0.1", int(it.gateway.url.rpartition(":")[2]))) as raw:
                raw.setblocking(False)
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = trusts.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
                while True:
                    with suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                        break
                    await loop.sock_sendall(raw, outgoing.read())
                    incoming.write(await loop.sock_recv(raw, 2**16))
                await loop.sock_sendall(raw, outgoing.read())
                assert await settled(lambda: all(handler.transport is not None for handler in it.gateway.clients._all))
                it.gateway.clients.close_idle()
                async with asyncio.timeout(5):
                    with suppress(ConnectionResetError):
                        while await loop.sock_recv(raw, 2**16):
                            pass

    run_loop(run())


def test_handshakes_beyond_the_limit_are_few_and_the_longest_ones_make_way(
    authority: Authority, certificate: tuple[Path, Path]
) -> None:
    async def run() -> None:
        trusts = ssl.create_default_context(cafile=str(authority.certificate))
        settings = patient(max_connections=40, head_s=60)
        async with stand("unified", access=Access(tls=ServerTls(*certificate)), settings=settings, trusts=trusts) as it:
            there = it.gateway.clients
            opened = await silent(it, 200)
            await asyncio.sleep(LEAST_IDLE_S)
            assert 0.9 * 20 <= len(there._all) <= 20 + MOST_REFUSED  # half of all, as they come from one address
            assert (await it.post("/generate", ask()))[0] == 200
            assert it.gateway.metrics.closed.labels("idle")._value.get() >= 1
            for writer in opened:
                writer.close()

    asyncio.run(run())


def test_wrong_files_of_tls_are_one_line(authority: Authority, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    locked = authority.sign("locked", password="some-password")
    (empty := tmp_path / "empty").touch()
    os.mkfifo(pipe := tmp_path / "pipe")
    pairs = [
        (cert, empty),
        (empty, key),
        (tmp_path / "none", key),
        (pipe, key),
        (cert, pipe),
        (cert, cert),
        (cert, authority.sign("other")[1]),
        locked,
    ]
    for pair in pairs:
        with pytest.raises(ConfigError, match=r"^--tls-cert .*give a PEM certificate chain and its key") as caught:
            ServerTls(*pair)
        assert str(caught.value).isprintable()
    for file in (empty, tmp_path / "none", key):
        with pytest.raises(ConfigError, match=r"^--worker-ca .*give certificates in PEM"):
            worker_tls(file)


def test_a_certificate_and_its_key_go_together(certificate: tuple[Path, Path]) -> None:
    options: dict[str, Any] = dict.fromkeys(("worker_key_file", "worker_ca", "api_keys", "tls_cert", "tls_key"))
    options |= {"admin_host": "127.0.0.1", "admin_port": 0}
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key go together"):
        read_access(**{**options, "tls_cert": certificate[0]})
    assert read_access(**options).tls is None
