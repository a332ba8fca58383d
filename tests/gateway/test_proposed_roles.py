"""A power controller in another process proposes roles over the admin listener; the gateway's authority decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pdplugins.hosts.power.assembly import Seat
from pdplugins.hosts.power.beside import Gateway
from pdplugins.hosts.power.roles import GatewayRoles
from pdplugins.types import Role, RoleMove
from tests.gateway.fake import settled
from tests.gateway.rig import ask, patient, stand

pytestmark = pytest.mark.moderate


def run(work: Any) -> None:
    asyncio.run(work)


def test_a_proposal_changes_a_label_and_the_last_worker_of_a_phase_stays_ready() -> None:
    async def work() -> None:
        async with stand("dual", "dual", "dual") as it:
            ids = [worker.id for worker in it.workers]
            url = it.gateway.admin_url + "/roles"
            body = {
                "moves": [{"worker": ids[2], "role": "prefill", "reason": "TTFT"}, {"worker": "no", "role": "decode"}]
            }
            async with it.client.post(url, json=body) as answer:
                said = await answer.json()
            assert said["roles"] == {ids[0]: "prefill", ids[1]: "decode", ids[2]: "prefill"}
            page = await (await it.client.get(it.gateway.admin_url + "/metrics")).text()
            assert 'role_changes_total{by="power",stage="done"} 1.0' in page
            assert (await it.post("/generate", ask()))[0] == 200

    run(work())


def test_a_proposal_that_does_not_come_is_given_up() -> None:
    async def work() -> None:
        async with stand("dual", "dual", settings=patient(body_s=0.1)) as it:
            address = it.gateway.admin_url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(*address)
            writer.write(
                b"POST /roles HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
            )
            async with asyncio.timeout(30):
                assert b" 408 " in await reader.readline()
            writer.close()

    run(work())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"moves": [{"worker": 1, "role": "decode"}]}',
        b'{"moves": [{"worker": "a", "role": "both"}]}',
    ],
)
def test_what_is_no_proposal_is_refused(body: bytes) -> None:
    async def work() -> None:
        async with stand("dual", "dual") as it:
            headers = {"Content-Type": "application/json"}
            async with it.client.post(it.gateway.admin_url + "/roles", data=body, headers=headers) as answer:
                assert answer.status == 400
                assert "moves" in (await answer.json())["error"]["message"]

    run(work())


def test_the_daemon_sees_roles_and_loads_and_proposes() -> None:
    async def work() -> None:
        async with stand("dual", "dual", "dual") as it:
            ids = [worker.id for worker in it.workers]
            gateway = Gateway(it.gateway.admin_url)
            await asyncio.to_thread(gateway.look)
            assert (await it.post("/generate", ask()))[0] == 200
            whole = await asyncio.to_thread(gateway.look)
            assert whole.traffic is not None
            assert (whole.traffic.requests, whole.traffic.ttft_s) == (1, None), "an answer in one piece has no TTFT"
            await it.stream("/generate", ask())
            seen = await asyncio.to_thread(gateway.look)
            assert seen.roles == {ids[0]: Role.PREFILL, ids[1]: Role.DECODE, ids[2]: Role.DECODE}
            assert seen.traffic is not None
            assert seen.traffic.requests == 1
            assert seen.traffic.ttft_s is not None
            assert [load.worker for load in seen.loads[Role.DECODE]] == ids[1:]
            seats = tuple(Seat(worker, (index,), Role.DECODE) for index, worker in enumerate(ids))
            roles = GatewayRoles(seats, gateway)
            roles.told(seen.roles)
            assert roles.ready(Role.PREFILL) == 1
            roles.propose([RoleMove(ids[1], Role.PREFILL, "TTFT")], 0.0)
            assert await settled(lambda: it.gateway.backends.by_id[ids[1]].view.role is Role.PREFILL)
            roles.told((await asyncio.to_thread(gateway.look)).roles)
            assert roles.role(ids[1]) is Role.PREFILL
            assert roles.failures == 0

    run(work())
