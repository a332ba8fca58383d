"""Keys that workers want."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys, read_worker_keys
from tests.gateway.access.rig import ADMIN, KEY, with_key, workers
from tests.gateway.fake import settled
from tests.gateway.rig import PROMPT, Fixed, ask, fast, over


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
