"""A gateway under a mix of all faults: nothing is left of them, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS, OF_PROCESSES
from tests.chaos.invariants import Invariants, come_true
from tests.chaos.plan import TIMEOUT_S, Plan, drive
from tests.chaos.stage import gateway_stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

FLEETS = {"unified servers": ("unified",) * 2, "pairs": ("dual",) * 3}
CONFIGS = {"unified servers": "stock-least-loaded", "pairs": "arrow"}


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_gateway_survives_every_fault(fleet: str, plan: Plan, tmp_path: Path) -> None:
    half = replace(plan, seconds=plan.seconds / len(FLEETS))
    faults = FAULTS + (OF_PROCESSES if fleet == "unified servers" else [])
    sys.stdout.write(f"seed {plan.seed}\n")

    async def run() -> None:
        async with gateway_stage(tmp_path, plan.seed, FLEETS[fleet], "--config", CONFIGS[fleet]) as stage:
            assert await come_true(lambda: stage.steady.sent > 50)
            checks = Invariants(stage)
            tallies = await drive(
                half,
                "tests/chaos/test_gateway.py",
                faults,
                stage,
                checks.after,
                after_round=checks.after_round,
                last_words=lambda: stage.gateway.said[-3000:],
            )
            rows = [{"fault": fault.name, "of": fault.of, **tallies[fault.name].row()} for fault in half.picked(faults)]
            steady = stage.steady.row()
            plan.write(fleet, {"faults": rows, "steady": steady, "held": checks.held})
            assert stage.workers[0].rooms.mismatches == []
            code, _ = await stage.gateway.end()
            assert code == 0

    asyncio.run(run())
