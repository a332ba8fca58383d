"""What a decision costs: every policy meets its bar on any machine, and none gets slower with its history."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from pdplugins import hookimpl
from pdplugins.config import Config
from pdplugins.contracts.register import Register
from pdplugins.profiling import commands, decisions
from pdplugins.profiling.decisions import BARS_US, DECISIONS, Cost, cost, measure, policies
from pdplugins.registry import Plugin, Registration, Registry, default_registry
from pdplugins.runtime.assembly import build_deployment

pytestmark = pytest.mark.moderate

REGISTERED = [r for r in default_registry().registrations() if r.kind in DECISIONS]
ROUTERS = sorted(r.name for r in REGISTERED if r.kind == "router")
MISSES = {("batch_scheduler", "fusion"), ("flow", "fusion")}
"""What is slower than its bar: benchmarks/README.md tells of it."""
JUDGED = [
    (r, size)
    for r in policies(default_registry())
    for kind, size in BARS_US
    if kind == r.kind and (kind, r.name) not in MISSES
]


SHARED = 2.0
"""Bars are for a core of one's own. What runs beside it takes caches and half of a core from a decision, which slows it
by more than the loop that is timed with it, which needs neither: up to twice as much was seen on full machines."""
ROUNDS = (2, 2, 5, 5, 20, 20)
"""A P99 of hundred decisions is the worst one or two of them, so that noise is most of it on a busy machine. The least
time of each decision counts over more and more rounds, and the lowest P99 of all tries."""


def lowest_p99(found: Callable[[int], Cost]) -> tuple[float, float]:
    """Return the lowest P99 and the bar, in loops; tries end as soon as it is within the bar."""
    lowest = math.inf
    for rounds in ROUNDS:
        one = found(rounds)
        lowest, bar = min(lowest, one.p99_loops), one.bar_loops or 0.0
        if lowest <= SHARED * bar:
            break
    return lowest, bar


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize(("registration", "size"), JUDGED, ids=[f"{r.kind}-{r.name}-{size}" for r, size in JUDGED])
@pytest.mark.timeout(900)
def test_the_p99_of_a_decision_is_within_its_bar(registration: Registration, size: int) -> None:
    lowest, bar = lowest_p99(lambda rounds: cost(registration, size, calls=100, rounds=rounds))
    assert lowest <= SHARED * bar


def test_a_decision_that_is_slow_in_every_try_is_found() -> None:
    def took(*p99s_us: float) -> Callable[[int], Cost]:
        left = iter(p99s_us)
        return lambda _: Cost("batch_scheduler", "any", 64, 1.0, next(left), 30.0, 100)

    assert lowest_p99(took(101, 101, 101, 101, 101, 101)) == (3.37, 1.67)
    assert lowest_p99(took(500, 99)) == (3.3, 1.67)


def test_every_policy_is_timed_once_at_every_size() -> None:
    costs = measure(sizes=(4, 8), calls=10, rounds=1)
    every = policies(default_registry())
    assert ("router", "fusion") in {(r.kind, r.name) for r in every}
    want = [(r.kind, r.name, size) for r in every for size in ((64,) if r.kind == "batch_scheduler" else (4, 8))]
    assert sorted((c.kind, c.plugin, c.workers) for c in costs) == sorted(want)
    assert all(0 < c.p50_us <= c.p99_us and c.loop_us > 0 for c in costs)


def test_policies_take_turns_so_that_a_slow_spell_spoils_one_round_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, str, int]] = []

    def timed(one: Registration, size: int, calls: int, _: int) -> decisions.Timed:
        order.append((one.kind, one.name, size))
        return [(1000, 30)] * calls

    monkeypatch.setattr(decisions, "_round", timed)
    shares: list[float] = []
    costs = measure(sizes=(4, 8), calls=2, rounds=3, progress=shares.append)
    once = [(c.kind, c.plugin, c.workers) for c in costs]
    assert len(set(once)) == len(once)
    assert order == once * 3
    assert shares == sorted(shares)
    assert (len(shares), shares[-1]) == (len(order), 1.0)


class Demanding(BaseModel):
    """Settings without a default."""

    model_path: str


def refuses(*_: Any) -> Any:
    raise RuntimeError("no such model")


def test_a_plugin_that_cannot_be_timed_is_left_out_and_told() -> None:
    """A plugin of somebody else must not lose what was measured of all others."""
    registry = Registry()
    registry.load_entry_points()
    module = ModuleType("acme")

    @hookimpl
    def pd_register_routers(register: Register) -> None:
        register("demanding", lambda settings, deployment: None, Demanding)
        register("refusing", refuses)

    @hookimpl
    def pd_register_bundles(register: Register) -> None:
        register("broken", refuses)

    module.pd_register_routers, module.pd_register_bundles = pd_register_routers, pd_register_bundles  # type: ignore[attr-defined]
    registry.add(Plugin("acme", "acme", "1"), module)
    told: dict[str, str] = {}
    costs = measure(
        (4,), calls=2, rounds=2, registry=registry, failed=lambda one, error: told.update({one.name: str(error)})
    )
    assert set(told) == {"demanding", "refusing", "broken"}
    assert "no such model" in told["broken"]
    assert {"least-loaded"} <= {cost.plugin for cost in costs}
    assert not {cost.plugin for cost in costs} & set(told)
    with pytest.raises(RuntimeError, match="no such model"):
        measure((4,), calls=2, rounds=1, registry=registry)


def test_costs_and_bars_are_numbers_of_the_same_loop() -> None:
    """On a machine on which the loop takes 60 us a decision may take twice as long as where it takes 30 us."""
    slow = Cost("router", "any", 4096, p50_us=1000.0, p99_us=2100.0, loop_us=60.0, calls=10)
    assert (slow.p50_loops, slow.p99_loops, slow.bar_loops) == (16.67, 35.0, 33.33)
    assert Cost("batch_scheduler", "any", 64, 1.0, 1.0, 30.0, 10).bar_loops == 1.67
    assert Cost("router", "any", 65, 1.0, 1.0, 30.0, 10).bar_loops is None
    assert slow.data().items() >= {"workers": 4096, "p99_us": 2100.0, "loop_us": 60.0, "p99_loops": 35.0}.items()


def test_of_the_rounds_the_least_time_of_each_decision_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([[(1000, 30), (9000, 40)], [(7000, 20), (2000, 60)]])
    monkeypatch.setattr(decisions, "_timed", lambda *_: next(rounds))
    found = cost(REGISTERED[0], 64, calls=2, rounds=2)
    assert (found.p50_us, found.p99_us, found.loop_us) == (1.5, 1.99, 0.03)


@pytest.mark.parametrize("name", ROUTERS)
def test_no_router_gets_slower_with_its_history(name: str) -> None:
    """The median of the last 1,000 decisions is not twice that of the first 1,000."""
    registration = default_registry().get("router", name)
    router = registration.factory(registration.settings(), build_deployment(Config()))
    timed = decisions._timed(decisions._router(router, 16, random.Random(1)), 6000)
    spent = [took / loop for took, loop in timed]
    early, late = sorted(spent[:1000])[500], sorted(spent[-1000:])[500]
    assert late < 2 * early


def test_the_command_writes_rows_for_machines(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    application = typer.Typer()
    commands.pd_register_commands(application)
    result = CliRunner().invoke(
        application, ["bench", "decisions", "--workers", "8", "--calls", "10", "--rounds", "1", "--json", str(out)]
    )
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert data["kind"] == "measured"
    assert data["loop_us"] > 0
    assert {"kind", "plugin", "workers", "p50_us", "p99_us", "loop_us", "p99_loops", "bar_loops"} <= set(
        data["rows"][0]
    )
    assert "least-loaded" in result.output
