"""Dynamo's planner and the fleet, through the connector."""

from __future__ import annotations

import asyncio
from typing import Any

from pdplugins.hosts.dynamo.local.connector import LocalProcessConnector
from pdplugins.runtime.roster import Life
from pdplugins.types import Role


class FakeFleet:
    """Takes orders and shows what the test put there."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.want_ = {Role.PREFILL: prefill, Role.DECODE: decode}
        self.ready = {Role.PREFILL: 0, Role.DECODE: 0}

    def want(self, role: Role, count: int) -> None:
        self.want_[role] = count

    def wanted(self, role: Role) -> int:
        return self.want_[role]

    def count(self, role: Role, life: Life) -> int:
        return self.ready[role] if life is Life.READY else 0

    @property
    def settled(self) -> bool:
        return self.ready == self.want_


def connect(fleet: FakeFleet, changes: list[tuple[int, int]]) -> LocalProcessConnector:
    def note(prefill: int, decode: int) -> None:
        changes.append((prefill, decode))

    any_fleet: Any = fleet
    return LocalProcessConnector(any_fleet, "model", {Role.PREFILL: 1, Role.DECODE: 2}, None, note)


def targets(**counts: int) -> list[Any]:
    from dynamo.planner.config.defaults import SubComponentType, TargetReplica  # noqa: PLC0415

    return [
        TargetReplica(sub_component_type=SubComponentType(role), desired_replicas=count)
        for role, count in counts.items()
    ]


def test_orders_of_the_real_planner_reach_the_fleet() -> None:
    """Both roles or one; a change is told once."""
    fleet, changes = FakeFleet(1, 1), list[tuple[int, int]]()
    connector = connect(fleet, changes)
    asyncio.run(connector.set_component_replicas(targets(prefill=3, decode=1)))
    asyncio.run(connector.set_component_replicas(targets(prefill=3, decode=1)))
    asyncio.run(connector.set_component_replicas(targets(decode=2)))
    assert fleet.want_ == {Role.PREFILL: 3, Role.DECODE: 2}
    assert changes == [(3, 1), (3, 2)]


def test_the_planner_sees_workers_that_serve_and_whether_more_are_coming() -> None:
    """Starting and draining workers are not ready, but they make the counts unstable."""
    fleet = FakeFleet(2, 1)
    connector = connect(fleet, [])
    fleet.ready = {Role.PREFILL: 1, Role.DECODE: 1}
    assert asyncio.run(connector.get_actual_worker_counts()) == (1, 1, False)
    fleet.ready[Role.PREFILL] = 2
    assert asyncio.run(connector.get_actual_worker_counts()) == (2, 1, True)
    assert connector.get_gpu_counts() == (1, 2)
    assert connector.get_model_name() == "model"


def test_the_planner_waits_for_one_worker_of_each_role() -> None:
    """It would plan for nothing before."""
    fleet = FakeFleet(1, 1)
    connector = connect(fleet, [])

    async def wait() -> bool:
        waiting = asyncio.create_task(connector.wait_for_deployment_ready())
        await asyncio.sleep(0.15)
        early = waiting.done()
        fleet.ready = {Role.PREFILL: 1, Role.DECODE: 1}
        await asyncio.wait_for(waiting, 2)
        return early

    assert asyncio.run(wait()) is False
