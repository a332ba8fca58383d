"""The matrix of fusion: fair cells, a search that finds the highest rate, and runs that are not made twice."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "fusion"))

import ablation
import cells
import few
import fingerprint
import longer
import manifest
import matrix
import pictures
import search
import sensitivity
import stale
import systems
import tables

from pdplugins.config import parse
from pdplugins.errors import PdpluginsError

REQUESTS = 60
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"2023-11-16 18:15:{at:02d}.0000000,{500 + 20 * at},{20 + at}\n" for at in range(REQUESTS)]
    (tmp_path / cells.FILES["conversation"][0]).write_text(HEAD + "".join(lines))
    return tmp_path


def cell(folder: Path, slo: str = "middle") -> cells.Cell:
    return cells.Cell("h100", "conversation", slo, folder)


def test_what_is_tuned_on_is_never_shown(folder: Path) -> None:
    one = cell(folder)
    tuned = {request.isl_tokens for request in one.traffic(10.0, 20.0, cells.TUNED)}
    shown = {request.isl_tokens for seed in cells.SHOWN for request in one.traffic(10.0, 20.0, seed)}
    assert tuned
    assert shown
    assert not tuned & shown


def test_a_run_lasts_as_long_at_every_rate(folder: Path) -> None:
    one = cell(folder)
    for rate in (20.0, 60.0):
        trace = one.traffic(rate, 20.0, 0)
        assert len(trace) == 20 * rate
        assert trace[-1].arrival_s == pytest.approx(20.0, rel=0.15)
        assert trace == one.traffic(rate, 20.0, 0)


def test_a_session_counts_as_all_its_requests(tmp_path: Path) -> None:
    rows = [f"s{session},{index},{500 + 40 * index},20\n" for session in range(40) for index in range(4)]
    text = "session,round,input_tokens_est,output_tokens_est\n" + "".join(rows)
    (tmp_path / cells.FILES["agents"][0]).write_text(text)
    trace = cells.Cell("h100", "agents", "middle", tmp_path).traffic(20.0, 30.0, 0)
    assert sum(map(cells.turns, trace)) == pytest.approx(600, rel=0.02)
    assert len({request.session for request in trace}) == len(trace)


def test_a_tighter_slo_is_a_smaller_multiple_of_the_same_step(folder: Path) -> None:
    tpot = {slo: cell(folder, slo).objectives()["tpot_s"] for slo in cells.TPOT_FACTORS}
    assert tpot["strict"] < tpot["middle"] < tpot["loose"]
    assert tpot["loose"] / tpot["strict"] == pytest.approx(4.0, rel=0.05)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PdpluginsError, match=r"no AzureLLMInferenceTrace_conv\.csv under"):
        cell(tmp_path).traffic(1.0, 1.0, 0)


def test_every_setting_of_every_system_has_the_same_gpus_and_slos(folder: Path) -> None:
    one = cell(folder)
    for tried in systems.systems(one).values():
        for config in tried.values():
            pools = parse(config).deployment
            used = pools.prefill.replicas * pools.prefill.tp + pools.decode.replicas * pools.decode.tp
            assert used == pools.gpu_budget == one.on.gpus
            assert config["slo"] == one.objectives()


def test_every_system_names_code_that_is_declared(folder: Path) -> None:
    prints = [search.code(search.policies(system), "h100/llama-3.1-8b") for system in systems.systems(cell(folder))]
    assert len(set(prints)) >= 6, "a change of one policy leaves the runs of the others"


@dataclass
class Line:
    """A system that serves everything up to `knee`, and a share of the rest."""

    knee: float
    runs: list[float] = field(default_factory=list)
    policies: tuple[str, ...] = ("stock",)

    def at(self, rate: float, seed: int) -> search.Run:
        self.runs.append(rate)
        return search.Run(min(1.0, self.knee / rate) ** 4, 1.0, 1.0, 1.0, 1.0, 1.0)

    def reaches(self, rate: float) -> bool:
        return self.at(rate, 0).attainment >= search.TARGET


@pytest.mark.parametrize("knee", [2.5, 4.0, 7.9])
def test_the_highest_rate_is_found(knee: float) -> None:
    line = Line(knee)
    true = knee / search.TARGET**0.25
    assert search.climbed(line.reaches, 0.0, 4.0) == pytest.approx(true, rel=0.05)
    assert search.seen(Line(knee), 4.0, 0).highest == pytest.approx(true / 4, rel=0.05)  # type: ignore[arg-type]


def test_a_setting_that_is_not_better_costs_one_run() -> None:
    line = Line(1.0)
    assert search.climbed(line.reaches, 1.5, 4.0) == 0.0
    assert len(line.runs) == 1


def test_only_rivals_stop_where_they_serve_nothing() -> None:
    rival, fusion = Line(0.2), Line(0.2, policies=("fusion",))
    assert search.seen(rival, 1.0, 0).points[-1].attainment > search.seen(fusion, 1.0, 0).points[-1].attainment  # type: ignore[arg-type]
    assert max(fusion.runs) == search.SHARES[-1]


def test_runs_that_were_made_are_remembered_when_the_script_was_stopped(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "x.jsonl"
    search.Memory(file).of(["a", 1.5], lambda: [0.25, 3.0])
    again = search.Memory(file, until=0.0)
    assert again.of(["a", 1.5], lambda: pytest.fail("made twice")) == [0.25, 3.0]
    with pytest.raises(search.OutOfTimeError):
        again.of(["a", 1.6], lambda: [0.0])


def test_a_run_of_other_requests_is_another_run(folder: Path, tmp_path: Path) -> None:
    """The files of a trace may be others, under the same names."""
    other = tmp_path / "other"
    other.mkdir()
    name = cells.FILES["conversation"][0]
    head, *lines = (folder / name).read_text().splitlines()
    times, lengths = zip(*(line.split(",", 1) for line in lines), strict=True)
    turned = [f"{at},{length}" for at, length in zip(times, reversed(lengths), strict=True)]
    (other / name).write_text("\n".join([head, *turned, ""]))
    keys: list[object] = []

    class Noted(search.Memory):
        def of(self, key: object, compute: object) -> list[float]:
            keys.append(key)
            return [1.0] * 6

    for one in (folder, folder, other):
        search.Trial(cell(one), {"router": "arrow"}, 10.0, Noted()).at(5.0, 0)
        search.bounds(cell(one), 5.0, 0, Noted())
    assert keys[:2] == keys[2:4]
    assert keys[4] not in keys[:4]
    assert keys[5] not in keys[:4]


@pytest.mark.parametrize(
    "path",
    ["fusion/search.py", "fusion/cells.py", "fusion/stale.py", "measure.py", "../profiles/h100/llama-3.1-70b-fp8.json"],
)
def test_what_computes_a_run_is_in_its_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_file, changed = fingerprint.of_file, (manifest.HERE / path).resolve()
    profile = cells.HARDWARE["h100"].profile
    before = search.code.__wrapped__(("stock",), profile)
    monkeypatch.setattr(fingerprint, "of_file", lambda one: "new" if one.resolve() == changed else of_file(one))
    assert search.code.__wrapped__(("stock",), profile) != before


def found(fusion: list[float], other: list[float], highest: tuple[float, float], folder: Path) -> tables.Found:
    def seen(attainments: list[float], rate: float) -> list[search.Seen]:
        return [search.Seen(tuple(search.Run(it, it, it, 1.0, 2.0, 3.0) for it in attainments), rate)]

    shown = {"fusion": seen(fusion, highest[0]), **{name: seen(other, highest[1]) for name in systems.STOCK}}
    return tables.Found(cell(folder), [10.0], dict.fromkeys(shown, ""), shown, [[1.0]])


def test_the_tables_say_where_fusion_loses(folder: Path) -> None:
    one = found([0.9, 0.8, 0.95, 0.9, 0.75, 0.4], [1.0, 0.7, 0.9, 0.5, 0.2, 0.1], (1.5, 1.2), folder)
    row, summary = tables.rates([one])[0], tables.summary([one])
    assert row["fusion's highest rate over it"] == pytest.approx(1.25)
    assert (row["least lead, points"], row["there"]) == (pytest.approx(-10.0), 0.5)
    assert row["lead at 1.5"] == pytest.approx(40.0)
    assert row["goodput at 3, of its peak till there"] == pytest.approx(1.2 / 1.5)
    assert row["regret below 1"] == pytest.approx(0.2)
    assert (summary["lost"], summary["goodput falls below 90 % at 3"]) == (1, 1)
    assert summary["gain"] == pytest.approx(1.25)


@pytest.mark.moderate
def test_a_cell_that_no_stock_configuration_serves_has_an_empty_picture(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "RESULTS", folder)
    good = found([1.0] * 6, [1.0, 0.9, 0.5, 0.1, 0.1, 0.1], (3.0, 1.0), folder)
    bad = tables.Found(cell(folder, "strict"), [0.0], {}, {}, [])
    pictures.curves("systems", [good, bad])
    pictures.gains("rates", [good, bad])
    drawn = [(folder / f"fusion-{name}.svg").read_text(encoding="utf-8") for name in ("systems", "rates")]
    assert ["h100, strict" in drawn[0], "h100, middle" in drawn[0]] == [True, True]
    assert ["strict" in drawn[1], "h100 conversation middle" in drawn[1]] == [False, True]


def test_a_cell_that_no_stock_configuration_serves_is_named_and_left_out(folder: Path) -> None:
    good = found([1.0] * 6, [1.0] * 6, (3.0, 3.0), folder)
    bad = tables.Found(cell(folder, "strict"), [0.0], {}, {}, [])
    assert tables.summary([good, bad])["left out"] == ["h100 conversation strict"]
    assert len(tables.rates([good, bad])) == 1


def test_only_what_arrives_in_the_window_is_counted(folder: Path) -> None:
    one = cell(folder)
    trace = one.traffic(8.0, 10.0, 0)
    config = systems.stock(one)[systems.STOCK[0]]["512 tokens"]
    everything, end = (search.measured(config, trace, window) for window in ((0.0, 10.0), (9.0, 10.0)))
    assert everything.attainment == everything.whole == end.whole
    assert end.ttft_worst_s <= everything.ttft_worst_s


@pytest.mark.moderate
def test_what_is_switched_off_or_deceived_still_has_the_same_gpus(folder: Path) -> None:
    one = cell(folder)
    theirs = systems.stock(one)[systems.STOCK[0]]["512 tokens"]
    yard = few.Yard(one, {systems.STOCK[0]: theirs}, [10.0], search.Memory())
    stale.add()
    configs = [*ablation.variants(one).values()]
    configs += [config for _, *pair in sensitivity.deceits(yard) for config in pair]
    assert len(configs) == 10 + 2 * 6
    for config in configs:
        parsed = parse(config)
        pools = parsed.deployment
        extra = sum(more.tp for more in parsed.simulation.extra)
        assert pools.prefill.replicas * pools.prefill.tp + pools.decode.replicas * pools.decode.tp + extra == 8


@pytest.mark.moderate
def test_a_wrong_profile_deceives_the_policy_and_leaves_the_engines(folder: Path) -> None:
    one = cell(folder)
    ours, theirs = systems.fusion(one), systems.stock(one)[systems.STOCK[0]]["512 tokens"]
    trace, whole = one.traffic(8.0, 10.0, 0), (0.0, 10.0)
    for deceive in (lambda config: sensitivity.believes(config, 1.3), sensitivity.one_slow):
        assert search.measured(deceive(ours), trace, whole) != search.measured(ours, trace, whole)
    assert search.measured(sensitivity.believes(theirs, 1.3), trace, whole) == search.measured(theirs, trace, whole)


def test_old_loads_are_a_second_old() -> None:
    from pdplugins.sim.core.views import LiveView  # noqa: PLC0415
    from pdplugins.types import Role  # noqa: PLC0415

    worker, reports = LiveView("p0", Role.PREFILL, 1, 1000, ()), stale.Reports()
    seen = []
    for tenth in range(30):
        worker.load.queued_tokens = tenth
        seen.append(reports.of((worker,), tenth / 10)[0].load.queued_tokens)
    assert seen[:11] == [0] * 11
    assert all(9 <= now - then <= 12 for now, then in enumerate(seen[12:], start=12))


@pytest.mark.long
def test_one_cell_is_made_of_real_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PER_WORKER", 15)
    memory = search.Memory()
    one = matrix.examined(cell(folder), cells.SHOWN[:1], memory)
    assert one.capacity > 0
    assert all(seen[0].points[0].attainment > 0 for seen in one.shown.values())
    assert max(one.highest(name) for name in systems.STOCK) >= 0.85, "the capacity is that of a stock configuration"
    row = tables.rates([one])[0]
    assert row["capacity, req/s"] == one.capacity
    assert next(matrix.told(one)).startswith("h100 conversation middle: ")


def test_studies_on_a_few_cells_have_the_stock_and_the_capacities_of_the_matrix(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "FEW", (("h100", "conversation", "middle"),))
    monkeypatch.setattr(manifest, "check_only", lambda *of: None)
    row = next(row for row in manifest.read("fusion-systems")["cells"] if row["cell"] == "h100 conversation middle")
    (yard,) = few.yards(folder, 2, search.Memory())
    assert yard.capacities == row["capacities"][:2]
    for name, tried in systems.stock(yard.cell).items():
        assert yard.stock[name] == tried[row["systems"][name]["setting"]]


def test_studies_on_a_few_cells_need_a_matrix_of_the_present_stock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "changed", lambda *of: ["simulator", "fusion"])
    with pytest.raises(PdpluginsError, match="simulator changed since it was made"):
        few.yards(folder, 1, search.Memory())


def a_longer(folder: Path) -> longer.Longer:
    one = cell(folder)
    return longer.Longer(one, matrix.last_of(one), systems.systems(one), search.Memory())


def test_longer_runs_meet_the_systems_that_were_best_there(folder: Path) -> None:
    one = a_longer(folder)
    for share in longer.SHARES:
        at = {name: it["attainment"][search.SHARES.index(share)] for name, it in one.last["systems"].items()}
        rivals = one.rivals(share)
        assert len(rivals) == longer.RIVALS
        assert tables.FUSION not in rivals
        assert min(at[name] for name in rivals) >= max(at[name] for name in at.keys() - {*rivals, tables.FUSION})


@pytest.mark.moderate
def test_a_row_of_longer_runs_holds_the_lead_over_the_best_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "PER_WORKER", 10)
    monkeypatch.setattr(cells, "SETTLE_S", 1.0)
    one = a_longer(folder)
    row = one.row()
    assert min(row["capacities"]) > 0
    for share in longer.SHARES:
        theirs = [one.at(name, share, row["capacities"]) for name in one.rivals(share)]
        assert row[f"lead at {share:g}"] == pytest.approx(100 * (row[f"fusion at {share:g}"] - max(theirs)))
    assert row["least lead, points"] == min(row[f"lead at {share:g}"] for share in longer.SHARES)
    short = search.Trial(one.cell, systems.fusion(one.cell), one.cell.lasts_s(one.last["capacities"][0]), one.memory)
    assert one._trial(tables.FUSION, 0).duration_s == longer.TIMES * short.duration_s


def test_a_cell_is_lost_from_half_a_point_below_the_best() -> None:
    rows = [{"least lead, points": lead, **{f"lead at {it:g}": lead for it in longer.SHARES}} for lead in (-0.4, -0.6)]
    assert longer.summary(rows) == {
        "cells": 2,
        "lost": 1,
        "least lead, points": -0.6,
        "mean lead": {f"{it:g}": pytest.approx(-0.5) for it in longer.SHARES},
    }
