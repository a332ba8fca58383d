"""What a decision costs: the bars of the project, loosely, because a test machine is noisy; and that nothing grows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pdplugins.config import Config
from pdplugins.profiling import commands, decisions
from pdplugins.profiling.decisions import DECISIONS, measure
from pdplugins.registry import default_registry
from pdplugins.runtime.assembly import build_deployment

pytestmark = pytest.mark.moderate

ROUTERS = sorted(r.name for r in default_registry().registrations() if r.kind == "router")


def test_every_policy_is_timed_and_decides_in_time() -> None:
    """Bars as P99: 100 us at 64 workers, 1 ms at 4,096, 50 us for a batch; here the median, with twice the time."""
    costs = list(measure(calls=60))
    known = {(r.kind, r.name) for r in default_registry().registrations() if r.kind in DECISIONS}
    assert {(cost.kind, cost.plugin) for cost in costs} == known
    bars = {("router", 64): 200, ("router", 4096): 2000, ("batch_scheduler", 64): 100, ("flow", 64): 100}
    slow = [cost for cost in costs if cost.p50_us > bars.get((cost.kind, cost.workers), 50_000)]
    assert slow == []


@pytest.mark.parametrize("name", ROUTERS)
def test_no_router_gets_slower_with_its_history(name: str) -> None:
    """The median of the last 1,000 decisions is not twice that of the first 1,000."""
    registration = default_registry().get("router", name)
    router = registration.factory(registration.settings(), build_deployment(Config()))
    spent = list(decisions._timed(decisions._router(router, 16, random.Random(1)), 6000))
    early, late = sorted(spent[:1000])[500], sorted(spent[-1000:])[500]
    assert late < 2 * early


def test_the_command_writes_rows_for_machines(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    application = typer.Typer()
    commands.pd_register_commands(application)
    result = CliRunner().invoke(
        application, ["bench", "decisions", "--workers", "8", "--calls", "10", "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert data["kind"] == "measured"
    assert {"kind", "plugin", "workers", "p50_us", "p99_us"} <= set(data["rows"][0])
    assert "least-loaded" in result.output
