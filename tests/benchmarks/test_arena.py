"""The arena: what is tuned on is not reported, rivals are fair, and a stopped run goes on where it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "arena"))

import rivals
import standings
import traffic
import trials
from rivals import Clairvoyant, Load
from standings import Front, Standing
from traffic import SEEDS, SHOWN, TUNED, Workload, of_half
from trials import PLACES, Cell, OutOfTimeError, Trial

from pdplugins import testing
from pdplugins.errors import PdpluginsError
from pdplugins.hosts.dynamo.offline import stock
from pdplugins.types import TraceRequest

BRIEF = {TUNED: ([traffic.flat(20, 4)],), SHOWN: ([traffic.flat(20, 4)],)}


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setattr(trials, "CELLS", tmp_path)
    monkeypatch.setitem(traffic.GENERATED, "steady", BRIEF)
    return Cell(Workload("steady", SHOWN), SEEDS[SHOWN][0], "30 s", "round_robin", "sim", None)


def row(attainment: float, gpu_hours: float, group: str = "fixed") -> dict[str, Any]:
    return {"group": group, "metrics": {"slo_attainment": attainment / 100, "gpu_hours": gpu_hours}}


def test_every_family_has_a_member_in_each_half_and_no_seed_is_in_both() -> None:
    assert len(traffic.FAMILIES) >= 12
    assert [it.family for it in of_half(TUNED)] == [it.family for it in of_half(SHOWN)] == list(traffic.FAMILIES)
    assert not set(SEEDS[TUNED]) & set(SEEDS[SHOWN])
    assert all(members[TUNED] != members[SHOWN] for members in traffic.GENERATED.values())
    with pytest.raises(PdpluginsError, match="belongs to the other half"):
        Workload("steady", TUNED).requests(SEEDS[SHOWN][0], None)


def test_a_missing_trace_is_named() -> None:
    with pytest.raises(PdpluginsError, match=r"no conversation_trace\.jsonl under --traces"):
        Workload("mooncake, raw", TUNED).requests(SEEDS[TUNED][0], None)


def test_a_smooth_trace_has_the_requests_and_the_rates_of_the_recorded_one() -> None:
    clumped = [TraceRequest(120.0 * (i // 60) + 3, 100 + i, 10) for i in range(600)]
    spread = list(traffic.smooth(clumped, seed=1))
    assert [it.isl_tokens for it in spread] == [it.isl_tokens for it in clumped]
    at = np.array([it.arrival_s for it in spread])
    assert (np.diff(at) >= 0).all()
    assert len(set(at)) > 500
    assert (at < 600).sum() == pytest.approx(300, abs=60)


@pytest.mark.moderate
def test_lengths_have_the_means_that_are_asked_for() -> None:
    drawn = Workload("ramp", SHOWN).requests(SEEDS[SHOWN][0], None)
    assert np.mean([it.isl_tokens for it in drawn]) == pytest.approx(1172, rel=0.03)
    assert np.mean([it.osl_tokens for it in drawn]) == pytest.approx(73, rel=0.03)


def test_the_front_begins_at_nothing_and_prices_what_it_reaches() -> None:
    front = Front.of([row(80, 2.0), row(90, 4.0), row(50, 3.0)])
    assert front.at(1.0) == pytest.approx(40)
    assert front.price(85) == pytest.approx(3.0)
    assert np.isnan(front.price(95))
    standing = Standing.of(row(85, 2.0, "dopd"), front)
    assert standing.above == pytest.approx(5)
    assert standing.saved == pytest.approx(1 / 3)
    assert standings.gain(85, 2.5, front, Front.of([row(85, 2.0)])) == pytest.approx(0.5)


def test_the_best_setting_is_the_best_on_average() -> None:
    assert standings.best({"a": [10, -30], "b": [1, 2]}) == "b"


def test_the_clairvoyant_scaler_asks_one_start_up_before_and_lets_go_at_once() -> None:
    deployment = testing.deployment(testing.flat_model(), gpu_budget=64, startup_s=30.0)
    requests = [TraceRequest(float(at), 1000, 10) for at in range(300)]
    busy = [TraceRequest(100 + at / 40, 1000, 10) for at in range(2000)]
    load = Load(sorted([*requests, *busy], key=lambda it: it.arrival_s), deployment)
    scaler = Clairvoyant(load, use=0.8)

    def wanted(at_s: float) -> int:
        return int(scaler.on_tick({"now_ms": at_s * 1e3})["target_prefill"])

    most = max(wanted(at) for at in range(300))
    assert most > wanted(60)
    first = next(at for at in range(300) if wanted(at) == most)
    assert 100 - 33 <= first <= 105 - 30
    assert wanted(160) < most


def test_stretches_of_work_need_as_many_workers_as_serve_them_in_time() -> None:
    work = np.zeros(60)
    work[10:20] = 3.0
    needed = rivals._needed(work, 1.0)
    assert needed[15] == pytest.approx(30 / 11, rel=0.01)
    assert needed[40] < 1


def test_every_stock_setting_is_one_of_dynamos() -> None:
    assert {key for _, settings in rivals.STOCK for key in settings} <= stock.TUNABLE


def test_fixed_pools_are_swept_from_the_mean_to_beyond_the_peak(cell: Cell) -> None:
    load, pools = cell.load, list(cell.load.pools())
    assert min(pools)[0] <= load.mean()[0] + 1
    assert max(pools)[0] >= load.peak()[0] + 1
    assert load.start() == (2, 1)
    assert {trial.group for trial in trials.trials(cell, (), {})} == {"fixed", "dopd"}


def test_fixed_pools_run_once_for_all_start_ups(cell: Cell) -> None:
    pools = Trial("fixed", "static", (2, 1))
    cell.run(pools)
    others = [Cell(cell.workload, cell.seed, place, cell.router, cell.host, None, until=0.0) for place in PLACES]
    assert [other.run(pools) for other in others[:3]] == [cell.run(pools)] * 3
    with pytest.raises(OutOfTimeError):
        others[3].run(pools)


@pytest.mark.moderate
def test_a_run_is_kept_and_after_the_time_nothing_begins(cell: Cell) -> None:
    trial = Trial("dopd", "dopd", (2, 1))
    first = cell.run(trial)
    assert first["metrics"]["slo_attainment"] > 0.9
    late = Cell(cell.workload, cell.seed, cell.place, cell.router, cell.host, None, until=0.0)
    assert late.run(trial) == first
    with pytest.raises(OutOfTimeError):
        late.run(Trial("dopd", "dopd", (2, 1), {"hold_s": 60}))


@pytest.mark.dynamo
@pytest.mark.parametrize("place", PLACES)
def test_everybody_runs_in_dynamos_replay(cell: Cell, place: str) -> None:
    replayed = Cell(cell.workload, cell.seed, place, "round_robin", "replay", None)
    load = replayed.load
    for trial in (
        Trial("fixed", "static", (2, 1)),
        Trial("dopd", "dopd", load.start()),
        Trial("clairvoyant", trials.CLAIRVOYANT, load.start(), {"use": 0.6}),
    ):
        metrics = replayed.run(trial)["metrics"]
        assert metrics["slo_attainment"] > 0.5
        assert metrics["gpu_hours"] > 0


def test_the_verdict_names_the_cells_that_are_lost() -> None:
    import pages  # noqa: PLC0415 - draws with matplotlib

    won = {"family": "ramp", "place": "30 s", "router": "kv_router", "above": 12.0, "stock_above": 3.0}
    lost = {"family": "steps", "place": "180 s", "router": "kv_router", "above": -4.0, "stock_above": -1.5}
    said = pages.verdict([won, lost])
    assert "front of fixed pools in 1 of 2 cells; it is in steps (180 s, -4.0)" in said
    assert "in 1; it is in steps (180 s, -2.5)" in said
    assert "it is in none." in pages.verdict([won])
    said = pages.verdict([won, lost | {"router": "round_robin"}])
    assert "it is in steps (180 s, round_robin, -4.0)" in said


def test_published_cells_are_kept_unless_they_ran_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import pages  # noqa: PLC0415 - draws with matplotlib

    told: list[dict[str, Any]] = []
    monkeypatch.setattr(pages, "published", lambda *_, more, notes, **__: told.append({"notes": notes, **more}))
    monkeypatch.setattr(pages, "line", lambda cell: cell)
    cell = {"family": "ramp", "seed": 1, "place": "30 s", "router": "kv_router", "above": 1.0, "stock_above": 0.0}
    again, other = cell | {"above": 2.0}, cell | {"place": "5 s"}
    before = {"cells": [cell, other], "command": "python arena.py", "commit": "0123abc"}
    pages.publish([again], ("dyn", {}), before)
    assert told[0]["cells"] == [other, again]
    assert told[0]["earlier"] == ["`python arena.py`, commit 0123abc"]
    assert any("`python arena.py`" in note for note in told[0]["notes"])
