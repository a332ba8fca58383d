"""Workers that are found while the gateway runs, and that go."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pdplugins.errors import ConfigError
from pdplugins.files import write_whole
from pdplugins.gateway import discovery
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.tls import ServerTls, worker_tls
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys
from pdplugins.gateway.backends import WorkerOption
from pdplugins.gateway.discovery import DnsSource, FileSource, KubernetesSource, parse_source
from pdplugins.types import Role
from tests.gateway.certificates import Authority
from tests.gateway.fake import FakeWorker, Rooms, answer_of, settled
from tests.gateway.process import running
from tests.gateway.rig import PROMPT, Fixed, Stand, ask, config, fast, over, patient


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "EVERY_S", 0.02)


async def started(*modes: str) -> list[FakeWorker]:
    rooms = Rooms()
    return [await FakeWorker(mode, rooms, 9000 + index).start() for index, mode in enumerate(modes)]


def lines(path: Path, *workers: FakeWorker, more: str = "") -> None:
    """Write the file at once: half of a line may name another server."""
    write_whole(path, "# workers\n" + "".join(f"{worker.url}{more}\n" for worker in workers))


def ready(it: Stand) -> set[str]:
    return set(it.gateway.backends.ready_ids)


def test_workers_of_a_file_come_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        one, other = workers = await started("unified", "unified")
        lines(path, one)
        async with over(workers, cfg=config(dual=False), sources=[FileSource(path)]) as it:
            assert ready(it) == {one.id}
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)
            for there in ([one, other], [other], [one, other]):
                lines(path, *there)
                assert await settled(lambda there=there: ready(it) == {worker.id for worker in there})
            lines(path, other)
            assert await settled(lambda: ready(it) == {other.id})
            assert (await it.post("/generate", ask()))[0] == 200
            assert other.served["local"] == 1
            async with it.client.get(it.gateway.admin_url + "/metrics") as answer:
                page = await answer.text()
            assert other.id in page
            assert one.id not in page

    asyncio.run(run())


def test_a_worker_that_is_found_no_more_ends_what_it_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        one, other = workers = await started("dual", "dual")
        one.token_s = 0.02
        lines(path, one, other)
        async with over(workers, cfg=config(), sources=[FileSource(path)]) as it:
            router = it.route(Fixed())
            router.first = router.second = [view.id for view in it.gateway.backends.ready].index(one.id)
            answer = asyncio.create_task(it.stream("/generate", ask(count=30)))
            assert await settled(lambda: one.running)
            lines(path, other)
            assert await settled(lambda: ready(it) == {other.id})
            assert not answer.done()
            assert (await answer)[-1]["output_ids"] == answer_of(PROMPT, 30)
            assert not it.faults["worker_failed"]

    asyncio.run(run())


def test_a_worker_that_is_found_no_more_and_is_lost_keeps_nobody_waiting(tmp_path: Path) -> None:
    """As with a machine that is switched off: a whole answer has no deadline but that of its request."""
    path = tmp_path / "workers"

    async def run() -> None:
        one, other = workers = await started("dual", "dual")
        lines(path, one, other)
        settings = patient(poll_s=0.02, poll_timeout_s=0.5, timeout_s=3600)
        async with over(workers, cfg=config(), sources=[FileSource(path)], settings=settings) as it:
            router = it.route(Fixed())
            router.first = router.second = [view.id for view in it.gateway.backends.ready].index(one.id)
            one.token_s = 3600.0
            answer = asyncio.create_task(it.post("/generate", ask()))
            assert await settled(lambda: one.running)
            lines(path, other)
            assert await settled(lambda: ready(it) == {other.id})
            await asyncio.sleep(0.1)
            assert not answer.done()
            one.faults.hang = True
            assert (await asyncio.wait_for(answer, 30))[1]["output_ids"] == answer_of(PROMPT, 9)
            assert other.served["local"] == 1

    asyncio.run(run())


def test_after_all_its_requests_have_ended_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        one, other = workers = await started("unified", "unified")
        lines(path, one, other)
        async with over(workers, cfg=config(dual=False), sources=[FileSource(path)]) as it:
            it.gateway._discovery.forget_s = 0.0
            lines(path, other)
            assert await settled(lambda: set(it.gateway.backends.by_id) == {other.id})

    asyncio.run(run())


def test_connections_to_a_worker_that_is_forgotten_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        one, other = workers = await started("unified", "unified")
        lines(path, one)
        async with over(workers, cfg=config(dual=False), sources=[FileSource(path)]) as it:
            targets = it.gateway.engine.upstream._connections._targets  # type: ignore[attr-defined]
            assert (await it.post("/generate", ask()))[0] == 200
            ((_, connection),) = targets[one.url].idle
            it.gateway._discovery.forget_s = 0.0
            lines(path, other)
            assert await settled(lambda: set(it.gateway.backends.by_id) == {other.id})
            assert not targets
            assert not connection.open

    asyncio.run(run())


@pytest.mark.parametrize("away", [False, True])
def test_other_options_of_a_worker_take_effect(tmp_path: Path, away: bool) -> None:
    """At once, also where it was away between; and what it has begun goes on."""
    path = tmp_path / "workers"

    async def run() -> None:
        one, other = workers = await started("dual", "dual")
        lines(path, one, other)
        async with over(workers, cfg=config(), sources=[FileSource(path)]) as it:
            router = it.route(Fixed())
            router.first = router.second = [view.id for view in it.gateway.backends.ready].index(one.id)
            one.token_s = 0.02
            answer = asyncio.create_task(it.stream("/generate", ask(count=30)))
            assert await settled(lambda: one.running)
            if away:
                lines(path, other)
                assert await settled(lambda: ready(it) == {other.id})
            lines(path, one, other, more=",role=decode,bootstrap_port=1234")
            backend = it.gateway.backends.by_id[one.id]
            assert await settled(lambda: backend.bootstrap_port == 1234 and len(ready(it)) == 2)
            assert backend.view.role is Role.DECODE
            assert not answer.done()
            lines(path, one, other)
            assert await settled(lambda: backend.bootstrap_port == 9000 and len(ready(it)) == 2)
            roles = [backend.view.role for backend in it.gateway.backends.all]
            assert sorted(roles) == [Role.DECODE, Role.PREFILL]
            assert (await answer)[-1]["output_ids"] == answer_of(PROMPT, 30)
            assert not it.faults["worker_failed"]

    asyncio.run(run())


def test_a_worker_may_change_from_http_to_https(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, authority = tmp_path / "workers", Authority.make(tmp_path / "ca")
    caplog.set_level("INFO")

    async def run() -> None:
        (worker,) = workers = await started("unified")
        lines(path, worker)
        access = Access(worker_ca=worker_tls(authority.certificate))
        async with over(workers, cfg=config(dual=False), sources=[FileSource(path)], access=access) as it:
            assert (await it.post("/generate", ask()))[0] == 200
            await worker.stop()
            worker.tls = ServerTls(*authority.sign("worker")).context
            await worker.start()
            write_whole(path, worker.url.replace("http:", "https:"))
            assert await settled(lambda: it.gateway.backends.all[0].url.startswith("https") and bool(ready(it)))
            assert (await it.post("/generate", ask()))[1]["output_ids"] == answer_of(PROMPT, 9)

    asyncio.run(run())
    assert any("has other options now" in line for line in caplog.messages)
    assert not any("found no more" in line for line in caplog.messages)


def test_keys_that_go_to_a_worker_that_is_found_in_plain_text_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each worker."""
    path = tmp_path / "workers"
    path.write_text("http://192.0.2.1:1\n")
    access = Access(worker_keys=WorkerKeys(WorkerKey("the-key-of-the-workers")))

    async def run() -> None:
        async with over([], cfg=config(dual=False), settings=fast(), sources=[FileSource(path)], access=access) as it:
            write_whole(path, "http://192.0.2.1:1\nhttps://192.0.2.2:1\nhttp://192.0.2.3:1,role=decode\n")
            assert await settled(lambda: len(it.gateway.backends.all) == 3)
            write_whole(path, "http://192.0.2.1:1,role=decode\n")
            assert await settled(lambda: len(it.gateway.backends.all) == 1)

    asyncio.run(run())
    told = [line for line in caplog.messages if "in plain text" in line]
    assert sorted(line.split()[3] for line in told) == ["http://192.0.2.1:1", "http://192.0.2.3:1"]


def test_a_source_that_fails_keeps_the_workers_before(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        workers = await started("unified")
        lines(path, *workers)
        async with over(workers, cfg=config(dual=False), sources=[FileSource(path)]) as it:
            for bad in (None, "no address\n", f"{workers[0].url},role=both\n"):
                before = it.faults["discovery"]
                path.unlink() if bad is None else path.write_text(bad)
                assert await settled(lambda before=before: it.faults["discovery"] > before)
                assert ready(it) == {workers[0].id}
            path.write_text("\n".join(f"http://127.0.0.1:{1 + n}" for n in range(discovery.MOST_WORKERS + 1)))
            before = it.faults["discovery"]
            assert await settled(lambda: it.faults["discovery"] > before)
            path.unlink()
            os.mkfifo(path)  # whoever opens it waits for a writer
            before = it.faults["discovery"]
            assert await settled(lambda: it.faults["discovery"] > before)
            assert (await it.post("/generate", ask()))[0] == 200

    asyncio.run(run())


def test_a_file_of_far_too_many_lines_is_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    path.write_text("http://a:1\n" * 300_000)
    began_s = time.perf_counter()
    with pytest.raises(ValueError, match="300000 workers"):
        asyncio.run(FileSource(path).look())
    assert time.perf_counter() - began_s < 1.0, "each line takes microseconds to parse"


def test_the_first_dual_role_workers_are_labelled_prefill(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        workers = await started("dual", "dual", "dual")
        lines(path, *workers)
        async with over(workers, cfg=config(), sources=[FileSource(path)]) as it:
            roles = [backend.view.role for backend in it.gateway.backends.all]
            assert sorted(roles) == [Role.DECODE, Role.DECODE, Role.PREFILL]

    asyncio.run(run())


def test_every_address_of_a_name_is_a_worker() -> None:
    async def run() -> None:
        workers = await started("unified")
        source = DnsSource("localhost", workers[0].port, ",kind=unified")
        found = {option.url: option for option in await source.look()}
        assert found[workers[0].url] == WorkerOption.parse(f"{workers[0].url},kind=unified")
        async with over(workers, cfg=config(dual=False), sources=[source]) as it:
            assert ready(it) == {workers[0].id}

    asyncio.run(run())


SLICES = {
    "items": [
        {
            "metadata": {"name": "one"},
            "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": 30000, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": True, "serving": True, "terminating": False}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": False, "serving": True, "terminating": True}},
                {"addresses": ["fd00::3"], "conditions": {}},
            ],
        },
        {"ports": None, "endpoints": None},
    ]
}


def test_a_pod_with_addresses_of_both_families_is_one_worker(tmp_path: Path) -> None:
    """Such a service has a slice of each family."""
    (tmp_path / "token").write_text("s3cret")
    families = {"IPv6": ["fd00::1", "fd00::2"], "IPv4": ["10.0.0.1", "10.0.0.2"]}
    slices = [
        {
            "addressType": family,
            "ports": [{"port": 30000}],
            "endpoints": [
                {"addresses": [address], "targetRef": {"kind": "Pod", "uid": f"pod {index}"}}
                for index, address in enumerate(addresses)
            ],
        }
        for family, addresses in families.items()
    ]

    async def run() -> None:
        runner, url = await kubernetes([(200, {"items": slices})], [])
        found = await KubernetesSource("workers", "llm", None, "", url, tmp_path).look()
        assert [option.url for option in found] == ["http://10.0.0.1:30000", "http://10.0.0.2:30000"]
        await runner.cleanup()

    asyncio.run(run())


async def kubernetes(answers: list[tuple[int, Any]], asked: list[tuple[str, str, str]]) -> tuple[web.AppRunner, str]:
    """An API server that answers with the next of `answers`, and then with the last one again."""

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, request.query["labelSelector"], request.headers["Authorization"]))
        status, data = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.json_response(data, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def test_the_endpoints_of_a_service_are_workers_but_those_that_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")

    async def run() -> None:
        asked: list[tuple[str, str, str]] = []
        runner, url = await kubernetes([(200, SLICES), (200, SLICES), (403, {"message": "may not"})], asked)
        source = KubernetesSource("workers", "llm", None, ",role=decode", url, tmp_path)
        found = await source.look()
        assert [option.url for option in found] == ["http://10.0.0.1:30000", "http://[fd00::3]:30000"]
        assert {option.role for option in found} == {Role.DECODE}
        (tmp_path / "token").write_text("another")
        named = KubernetesSource("workers", "llm", 8080, "", url, tmp_path)
        assert (await named.look())[0].url == "http://10.0.0.1:8080"
        with pytest.raises(OSError, match="403"):
            await source.look()
        path = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
        assert asked[:2] == [
            (path, "kubernetes.io/service-name=workers", f"Bearer {token}") for token in ("s3cret", "another")
        ]
        await runner.cleanup()

    asyncio.run(run())


@pytest.mark.parametrize("said", [b"no json", b"{}", b'{"items": [{"endpoints": [{"addresses": 1}]}]}'])
def test_what_is_no_list_of_endpoints_keeps_the_workers(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "token").write_text("s3cret")

    async def run() -> None:
        (worker,) = workers = await started("unified")
        now: list[bytes] = [
            b'{"items": [{"ports": [{"port": %d}], "endpoints": [{"addresses": ["127.0.0.1"]}]}]}' % worker.port
        ]

        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=now[0])

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        source = KubernetesSource("w", "n", None, "", f"http://127.0.0.1:{runner.addresses[0][1]}", tmp_path)
        async with over(workers, cfg=config(dual=False), sources=[source]) as it:
            assert ready(it) == {worker.id}
            now[0] = said
            assert await settled(lambda: it.faults["discovery"] > 1)
            assert ready(it) == {worker.id}
            now[0] = b'{"items": []}'
            assert await settled(lambda: not ready(it))
        await runner.cleanup()

    asyncio.run(run())


def test_in_a_pod_the_token_and_the_namespace_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    with pytest.raises(ConfigError, match="no pod"):
        parse_source("kubernetes:workers")
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("mine\n")
    source = parse_source("kubernetes:workers:8080,role=prefill")
    assert source == KubernetesSource("workers", "mine", 8080, ",role=prefill", "https://[fd00::1]:6443")
    assert parse_source("kubernetes:yours/workers") == KubernetesSource(
        "workers", "yours", None, "", "https://[fd00::1]:6443"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("consul:workers", "write file:PATH"),
        ("file:", "write file:PATH"),
        ("file:/does/not/exist", "cannot be read"),
        ("file:/dev/null,role=decode", "options"),
        ("dns:workers", "HOST:PORT"),
        ("dns:workers:1,role=both", "roles are prefill and decode"),
        ("kubernetes:workers", "no pod"),
    ],
)
def test_what_is_no_source_is_one_line(text: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=why) as error:
        parse_source(text)
    assert "\n" not in str(error.value)


@pytest.mark.moderate
def test_the_command_finds_workers(tmp_path: Path) -> None:
    path = tmp_path / "workers"

    async def run() -> None:
        workers = await started("unified", "unified")
        lines(path, workers[0])
        async with running(workers[1:], tmp_path, "--discover", f"file:{path}") as gateway:
            assert "2 workers" in gateway.said
            async with (
                aiohttp.ClientSession() as client,
                client.post(gateway.url + "/generate", json=ask()) as answer,
            ):
                assert answer.status == 200
            assert (await gateway.end())[0] == 0
        await workers[0].stop()

    asyncio.run(run())
