"""``dynamo serve`` under a mix of all faults: it goes on, replaces what died, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
import yaml

from tests.chaos.plan import TIMEOUT_S, Plan, drive
from tests.chaos.stack import FAULTS, StackInvariants, StackStage, free
from tests.hosts.dynamo.local.serve import Serve

pytestmark = [pytest.mark.dynamo, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]


def test_a_stack_survives_every_fault(plan: Plan, tmp_path: Path) -> None:
    planner = {"name": "dopd", "interval_s": 1, "hold_s": 600, "predictor": "last-value"}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"deployment": {"gpu_budget": 8}, "planner": planner}))
    temp = tmp_path / "temp"
    temp.mkdir()
    options = ["--config", str(config), "--port", "0", "--metrics-port", "0", "--prefill", "2", "--decode", "2"]
    serve = Serve(options, temp, {})
    sys.stdout.write(f"seed {plan.seed}\n")

    async def run() -> None:
        stage = await asyncio.to_thread(StackStage, serve)
        checks = StackInvariants(stage)
        async with stage.steady.asking():
            tallies = await drive(
                plan,
                "tests/chaos/test_dynamo_serve.py",
                FAULTS,
                stage,
                checks.after,
                after_round=checks.after_round,
                last_words=stage.last_words,
            )
        rows = [{"fault": fault.name, "of": fault.of, **tallies[fault.name].row()} for fault in plan.picked(FAULTS)]
        plan.write("dynamo serve", {"faults": rows, "steady": stage.steady.row(), "held": checks.held})
        pids = serve.descendants()
        assert await asyncio.to_thread(serve.signal, signal.SIGTERM) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert not list(temp.iterdir())
        assert free(stage.port)

    try:
        asyncio.run(run())
    finally:
        serve.close()
