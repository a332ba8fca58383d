"""Keys of workers and clients, TLS, and who may see what."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError
from pdplugins.gateway.access import api_keys
from pdplugins.gateway.access.access import Access, read_access
from pdplugins.gateway.access.api_keys import ApiKeys, new_key, read_keys
from pdplugins.gateway.access.tls import ServerTls, worker_tls
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys, read_worker_keys
from pdplugins.gateway.backends import WorkerOption
from tests.gateway.certificates import Authority
from tests.gateway.fake import FakeWorker, Rooms, settled
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, fast, over, stand
from tests.refusals import refusal

KEY, ADMIN = "the-key-of-the-workers", "the-key-of-their-admin"


async def workers(*modes: str, key: str | None = KEY, admin: str | None = None) -> list[FakeWorker]:
    rooms = Rooms()
    found = [FakeWorker(mode, rooms, 9000 + number, 0.01) for number, mode in enumerate(modes)]
    for worker in found:
        worker.key, worker.admin_key = key, admin
        await worker.start()
    return found


def with_key(key: str | None = KEY, admin: str | None = None) -> Access:
    return Access(worker_keys=WorkerKeys(WorkerKey(key, admin)))


# --- keys of workers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admin", [None, ADMIN])
def test_every_request_to_a_worker_carries_its_key(admin: str | None) -> None:
    """Polls, tokenizer calls, local, pair and push, what any worker may answer, and aborts with the admin key."""

    async def run() -> None:
        async with over(await workers("dual", "dual", admin=admin), access=with_key(admin=admin)) as it:
            router: Fixed = it.route(Fixed())
            for router.second, router.split in ((1, len(PROMPT)), (1, 20), (0, len(PROMPT))):
                status, _ = await it.post("/generate", ask("text of a prompt of some length"))
                assert status == 200
            async with it.client.get(it.gateway.url + "/v1/models") as answer:
                assert answer.status == 200
            asked = asyncio.create_task(it.post("/generate", ask(count=500)))
            assert await settled(lambda: any(worker.running for worker in it.workers))
            asked.cancel()
            assert await settled(lambda: any(worker.aborted for worker in it.workers))
            assert [worker.strangers for worker in it.workers] == [[], []]

    asyncio.run(run())


def test_each_worker_may_have_its_own_key() -> None:
    async def run() -> None:
        one, other = await workers("unified", "unified")
        other.key = "a-key-of-its-own"
        keys = WorkerKeys(WorkerKey(KEY), {other.url: WorkerKey(other.key)})
        async with over([one, other], access=Access(worker_keys=keys)) as it:
            assert len(it.gateway.backends.ready) == 2
            assert not one.strangers + other.strangers

    asyncio.run(run())


@pytest.mark.moderate
@pytest.mark.parametrize("key", [None, "another-key-than-theirs"])
def test_a_worker_that_refuses_the_key_is_said_once_and_gets_nothing(
    key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        (worker,) = await workers("unified")
        async with over([worker], access=with_key(key)) as it:
            assert await settled(lambda: len(worker.strangers) > 5)
            status, said = await it.post("/generate", ask())
            assert status == 503
            assert worker.id not in json.dumps(said)
            assert not worker.seen
            assert it.faults["poll_missed"] > 3
            worker.key = key  # it is started anew with the right one
            assert await settled(lambda: bool(it.gateway.backends.ready))

    asyncio.run(run())
    lines = [line for line in caplog.messages if "refuses our key" in line]
    assert len(lines) == 1
    assert "status 401" in lines[0]
    assert "--worker-key-file or PDPLUGINS_WORKER_KEY" in lines[0]
    assert KEY not in caplog.text


def test_a_worker_that_repeats_its_key_tells_it_nobody(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """As debugging servers and proxies do, which answer with what they got. In the log it is one line."""
    (tmp_path / "keys").write_text(KEY)
    access = Access(worker_keys=read_worker_keys(tmp_path / "keys"))

    async def run() -> None:
        async with over(await workers("unified"), access=access) as it:
            faults = it.workers[0].faults
            faults.body = f'{{"error": "no good\n\x1b[2J request of {KEY}"}}'.encode()
            for faults.status in (400, 422, 500):
                async with it.client.post(it.gateway.url + "/generate", json=ask()) as answer:
                    assert answer.status == (502 if faults.status == 500 else faults.status)
                    assert KEY not in await answer.text()
            async with it.client.get(it.gateway.admin_url + "/metrics") as page:
                assert KEY not in await page.text()

    asyncio.run(run())
    assert "status 500" in caplog.text
    assert not any("\n" in record.getMessage() or "\x1b" in record.getMessage() for record in caplog.records)


def test_a_key_that_a_worker_stops_taking_is_not_the_clients_fault() -> None:
    """A client that gets 401 would look for a fault of its own key."""

    async def run() -> None:
        found = await workers("unified")
        async with over(found, access=with_key(), settings=fast(retries=0, poll_s=60)) as it:
            found[0].key = "a-newer-key"
            status, said = await it.post("/generate", ask())
            assert status == 502
            assert KEY not in json.dumps(said)

    asyncio.run(run())


def test_a_worker_that_is_not_there_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        (gone,) = await workers("unified", key=None)
        await gone.stop()
        async with over([gone]) as it:
            await asyncio.sleep(0.3)
            assert not it.gateway.backends.ready

    asyncio.run(run())
    assert len([line for line in caplog.messages if "is not there" in line]) == 1


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", WorkerKeys()),
        ("# none\n\n", WorkerKeys()),
        (f"{KEY}\n", WorkerKeys(WorkerKey(KEY))),
        (f"{KEY} {ADMIN}\n", WorkerKeys(WorkerKey(KEY, ADMIN))),
        (
            f"{KEY}\nhttp://a:1/ {ADMIN}\nhttps://b other-key {ADMIN}\n",
            WorkerKeys(WorkerKey(KEY), {"http://a:1": WorkerKey(ADMIN), "https://b": WorkerKey("other-key", ADMIN)}),
        ),
    ],
)
def test_keys_of_workers_are_read_from_a_file(tmp_path: Path, text: str, keys: WorkerKeys) -> None:
    (tmp_path / "keys").write_text(text)
    assert read_worker_keys(tmp_path / "keys") == keys


def test_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDPLUGINS_WORKER_KEY", raising=False)
    assert read_worker_keys(None) == WorkerKeys()
    monkeypatch.setenv("PDPLUGINS_WORKER_KEY", KEY)
    monkeypatch.setenv("PDPLUGINS_WORKER_ADMIN_KEY", ADMIN)
    assert read_worker_keys(None) == WorkerKeys(WorkerKey(KEY, ADMIN))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("short", "line 1: a key has at least 8 characters"),
        (f"{KEY}\n{KEY} {ADMIN} more-of-that", "line 2: write KEY or URL KEY"),
        (f"http://a:1\n{KEY}", "line 1: write KEY or URL KEY"),
        (f"http://u:hunter2hunter2@a:1 {KEY}", r"line 1: leave user and password out of 'http://\*\*\*@a:1'"),
        ("x" * 2**20 + "y", "larger than 1 MiB"),
    ],
)
def test_a_wrong_file_of_keys_is_one_line_that_shows_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_worker_keys(tmp_path / "keys")
    assert str(caught.value).isprintable()
    assert not [word for word in (KEY, ADMIN, "hunter2") if word in str(caught.value)]


# --- keys of clients -------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(api_keys, "LOOK_S", 0.05)
    return tmp_path / "keys"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def status_of(it: Stand, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> int:
    async with it.client.request(method, it.gateway.url + path, headers=headers, json=body) as answer:
        said = await answer.read()
        assert answer.status < 400 or json.loads(said)["error"]["code"] == answer.status
        return answer.status


def test_without_a_key_nothing_is_told_but_that_someone_listens(keys: Path) -> None:
    key = new_key(keys, "alice", admin=False)

    async def run() -> None:
        async with stand("unified", access=Access(api_keys=ApiKeys(keys))) as it:
            asked = [("POST", "/generate"), ("POST", "/v1/chat/completions"), ("POST", "/v1/tokenize")]
            asked += [("GET", "/v1/models"), ("GET", "/server_info"), ("GET", "/nothing"), ("DELETE", "/generate")]
            wrong = (None, bearer("pdp-wrong"), bearer(""), {"Authorization": key}, bearer(key[:-1]), bearer(key + "x"))
            for method, path in asked:
                for headers in wrong:
                    assert await status_of(it, method, path, headers, ask() if method == "POST" else None) == 401
            assert await status_of(it, "GET", "/health") == 200
            assert not it.workers[0].seen
            assert it.faults["unauthorized"] == len(asked) * len(wrong)
            for headers in (bearer(key), {"Authorization": f"bearer  {key}"}):
                assert await status_of(it, "POST", "/generate", headers, ask()) == 200

    asyncio.run(run())


def test_a_client_is_told_how_to_send_a_key(keys: Path) -> None:
    new_key(keys, "alice", admin=False)

    async def run() -> None:
        async with (
            stand("unified", access=Access(api_keys=ApiKeys(keys))) as it,
            it.client.post(it.gateway.url + "/generate", json=ask()) as answer,
        ):
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert (await answer.json())["error"]["message"].endswith("in the header Authorization, after 'Bearer'")

    asyncio.run(run())


@pytest.mark.moderate
@pytest.mark.parametrize("how", ["by itself", "when told"])
def test_keys_come_and_go_while_it_runs(keys: Path, how: str) -> None:
    """A file that is wrong changes nothing."""
    alice = new_key(keys, "alice", admin=False)
    access = Access(api_keys=ApiKeys(keys))

    async def allowed(it: Stand, key: str, expected: int) -> bool:
        for _ in range(200):
            if how == "when told":
                access.reload()
            if await status_of(it, "GET", "/v1/models", bearer(key)) == expected:
                return True
            await asyncio.sleep(0.02)
        return False

    async def run() -> None:
        async with stand("unified", access=access) as it:
            bob = new_key(keys, "bob", admin=False)
            assert await allowed(it, bob, 200)
            assert await allowed(it, alice, 200)
            keys.write_text("".join(line for line in keys.open() if "alice" not in line))
            assert await allowed(it, alice, 401)
            assert await allowed(it, bob, 200)
            for wrong in ("bob sha256:123\n", "\x00", "bob"):
                keys.write_text(wrong)
                await asyncio.sleep(0.1)
                assert await allowed(it, bob, 200)
            keys.unlink()
            await asyncio.sleep(0.1)
            assert await allowed(it, bob, 200)
            keys.write_text("")
            assert await allowed(it, bob, 401)

    asyncio.run(run())


def test_the_file_holds_hashes_and_is_for_its_owner(keys: Path) -> None:
    made = {name: new_key(keys, name, admin=name == "root") for name in ("alice", "root")}
    assert len(set(made.values())) == 2
    assert all(len(key) > 40 for key in made.values())
    text = keys.read_text()
    assert not [key for key in made.values() if key in text]
    assert text.splitlines() == [
        f"alice sha256:{sha256(made['alice'].encode()).hexdigest()}",
        f"root sha256:{sha256(made['root'].encode()).hexdigest()} admin",
    ]
    assert keys.stat().st_mode & 0o777 == 0o600


def test_what_a_person_wrote_in_the_file_stays(keys: Path) -> None:
    keys.write_text("# of the team\n\nold sha256:" + "0" * 64)
    new_key(keys, "new", admin=False)
    assert keys.read_text().splitlines()[:3] == ["# of the team", "", "old sha256:" + "0" * 64]
    assert [key.name for key in read_keys(keys)] == ["old", "new"]


@pytest.mark.parametrize("name", ["alice", "a b", "a\nb", "", "x" * 65, "sha256:0"])
def test_a_name_is_a_word_and_used_once(keys: Path, name: str) -> None:
    new_key(keys, "alice", admin=False)
    before = keys.read_text()
    with pytest.raises(ConfigError, match=r"^gateway-key: .*(has a key called alice|is no name)") as caught:
        new_key(keys, name, admin=False)
    assert str(caught.value).isprintable()
    assert keys.read_text() == before


def test_workers_do_not_see_the_keys_of_clients(keys: Path) -> None:
    """Without keys of its own, a gateway passes on what clients send, for workers behind a proxy that checks it."""
    key = new_key(keys, "alice", admin=False)

    async def given(access: Access | None) -> set[str | None]:
        async with stand("unified", access=access) as it:
            it.workers[0].given.clear()
            assert await status_of(it, "POST", "/generate", bearer(key), ask()) == 200
            assert await status_of(it, "GET", "/v1/models", bearer(key)) == 200
            return set(it.workers[0].given)

    assert asyncio.run(given(Access(api_keys=ApiKeys(keys)))) == {None}
    assert f"Bearer {key}" in asyncio.run(given(None))
    assert asyncio.run(given(with_key())) == {f"Bearer {KEY}"}


# --- what a request must be, and what it gets ------------------------------------------------------------------------


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


# --- TLS -------------------------------------------------------------------------------------------------------------


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


def test_a_new_certificate_is_used_from_the_next_connection_on(authority: Authority, tmp_path: Path) -> None:
    first, second = authority.sign("first"), authority.sign("second")
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

    asyncio.run(run())


def test_a_client_that_does_not_finish_its_handshake_is_cut_off(certificate: tuple[Path, Path]) -> None:
    """Against a control: the same deadline for the head of a request over plain HTTP."""

    async def closed(it: Stand) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(it.gateway.url.rpartition(":")[2]))
        writer.write(b"\x16\x03\x01")  # the beginning of a TLS record
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)  # until it is closed
        writer.close()

    async def run() -> None:
        for access in (Access(), Access(tls=ServerTls(*certificate))):
            async with stand("unified", access=access, settings=fast(head_s=0.3)) as it:
                await closed(it)

    asyncio.run(run())


def test_wrong_files_of_tls_are_one_line(authority: Authority, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    locked = authority.sign("locked", password="some-password")
    (empty := tmp_path / "empty").touch()
    pairs = [
        (cert, empty),
        (empty, key),
        (tmp_path / "none", key),
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


# --- the listener of operators ---------------------------------------------------------------------------------------


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


# --- options ---------------------------------------------------------------------------------------------------------


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


def test_a_certificate_and_its_key_go_together(certificate: tuple[Path, Path]) -> None:
    options: dict[str, Any] = dict.fromkeys(("worker_key_file", "worker_ca", "api_keys", "tls_cert", "tls_key"))
    options |= {"admin_host": "127.0.0.1", "admin_port": 0}
    with pytest.raises(ConfigError, match="--tls-cert and --tls-key go together"):
        read_access(**{**options, "tls_cert": certificate[0]})
    assert read_access(**options).tls is None


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


KEY_LINES = st.sampled_from(
    [
        b"steady sha256:" + b"0" * 64,
        b"x sha256:" + b"g" * 64,
        b"http://127.0.0.1:1 key-of-eight",
        b"#",
        b"a b c d",
        b"\xff",
    ]
)


@pytest.mark.moderate
@given(st.lists(KEY_LINES | st.binary(max_size=30), max_size=4).map(b"\n".join))
def test_any_file_of_keys_is_read_or_an_error_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-keys"
    path.write_bytes(content)
    for read in (read_keys, read_worker_keys):
        assert "\n" not in refusal(partial(read, path))
