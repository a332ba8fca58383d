"""Workers and clients with keys, for the tests of this folder."""

from __future__ import annotations

import json
from typing import Any

from pdplugins.gateway.access.access import Access
from pdplugins.gateway.access.worker_keys import WorkerKey, WorkerKeys
from tests.gateway.fake import FakeWorker, Rooms
from tests.gateway.rig import Stand

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


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def status_of(it: Stand, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> int:
    async with it.client.request(method, it.gateway.url + path, headers=headers, json=body) as answer:
        said = await answer.read()
        assert answer.status < 400 or json.loads(said)["error"]["code"] == answer.status
        return answer.status
