"""Faults on real servers, a short `benchmarks/faults.py`: answers are right, errors clear, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.rig.faults import FAULTS, Came, Tally, all_is_well
from benchmarks.rig.stage import Stage, grown, on_servers
from tests.hosts.sglang import setups
from tests.hosts.sglang.setups import Bench

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

CHEAP = {
    "gateway is killed": 1,
    "client leaves": 24,
    "bootstrap never answers": 6,
    "other half never comes": 6,
    "garbage at the ports": 10,
    "foreign message": 3,
    "side stops for 1-4 s": 1,
}


async def make(stage: Stage, faults: Mapping[str, int]) -> dict[str, Tally]:
    """Make faults one kind after the other, with requests that nothing is wrong with before and after."""
    dice = random.Random(17)
    tallies = {kind: Tally() for kind in faults}
    well = [await all_is_well(stage, dice, 12)]
    for kind, count in faults.items():
        await FAULTS[kind](stage, dice, count, tallies[kind])
    well.append(await all_is_well(stage, dice, 12))
    assert [tally.requests for tally in well] == [{Came.RIGHT: 12}] * 2, [tally.said for tally in well]
    return tallies


@setups.on(*setups.ROOMY)
def test_every_request_is_right_or_ends_with_a_clear_error_and_nothing_is_left(bench: Bench, tmp_path: Path) -> None:
    async def run() -> None:
        async with on_servers(*bench.pair, bench.unified, tmp_path) as it:
            await all_is_well(it, random.Random(16), 12)
            before = await it.held()
            for kind, tally in (await make(it, CHEAP)).items():
                assert not tally.defects, (kind, tally)
            after = await it.held()
            assert not grown(before["a"], after["a"])
            assert not grown(before["b"], after["b"])

    asyncio.run(run())


@setups.on(setups.ROOMY[1])
@pytest.mark.usefixtures("may_die")
def test_a_server_that_is_killed_in_mid_transfer_costs_no_answer(bench: Bench, tmp_path: Path) -> None:
    """Each side once, with a restart on the same ports. Of one version: what the gateway makes of it is the same."""

    async def run() -> None:
        async with on_servers(*bench.pair, bench.unified, tmp_path) as it:
            tally = (await make(it, {"side is killed": 2}))["side is killed"]
            assert not tally.defects, tally
            await it.held()

    asyncio.run(run())
