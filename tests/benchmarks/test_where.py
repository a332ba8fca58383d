"""The map of where disaggregation wins: who is held against whom, what counts as a tie, and places that are left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "fusion"))

import cells
import search
import where
import where_map
from systems import STOCK, systems

from pdplugins.config import parse

REQUESTS = 60
CHUNK, SPLIT, SIZED = STOCK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [f"2023-11-16 18:15:{at:02d}.0000000,{500 + 20 * at},{20 + at}\n" for at in range(REQUESTS)]
    for names in cells.FILES.values():
        if names[0].endswith(".csv") and names[0].startswith("Azure"):
            (tmp_path / names[0]).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines))
    return tmp_path


def attainments(**at_load_one: float) -> dict[str, list[float]]:
    """Return everyone at 1 below capacity, and at 0.5 there unless something else is said."""
    names = {CHUNK: "chunk", SPLIT: "split", SIZED: "sized"}
    return {name: [1.0, 1.0, at_load_one.get(names.get(name, name), 0.5)] for name in (*STOCK, *where.PLUGINS)}


@pytest.mark.parametrize(
    ("highest", "gain", "wins"),
    [
        ({CHUNK: 10.0, SIZED: 8.0, SPLIT: 12.0}, 1.2, "disaggregated"),
        ({CHUNK: 8.0, SIZED: 10.0, SPLIT: 9.0}, 0.9, "co-located"),
        ({CHUNK: 10.0, SIZED: 8.0, SPLIT: 10.4}, 1.04, "tie"),
        ({CHUNK: 0.0, SIZED: 0.0, SPLIT: 3.0}, None, "disaggregated"),
    ],
)
def test_the_split_is_held_against_the_better_co_location(
    highest: dict[str, float], gain: float | None, wins: str
) -> None:
    found = where_map.verdicts(highest, attainments())
    assert (found["split_gain"], found["split_wins"]) == (gain, wins)


HIGHEST = {CHUNK: 10.0, SIZED: 8.0, SPLIT: 12.0}


def test_a_load_is_won_by_the_best_of_each_side() -> None:
    found = where_map.verdicts(HIGHEST, attainments(sized=0.7, arrow=0.9, fusion=0.95))
    assert found["leads"] == [0.0, 0.0, 20.0]
    assert found["wins"] == ["tie", "tie", "disaggregated"]
    assert found["winners"] == [None, None, "fusion"]
    assert found["plugin_leads"] == [0.0, 0.0, 25.0]


def test_fusion_and_dynaserve_are_on_no_side() -> None:
    found = where_map.verdicts(HIGHEST, attainments(chunk=0.9, split=0.6, fusion=1.0, dynaserve=1.0))
    assert (found["leads"][2], found["wins"][2]) == (-30.0, "co-located")
    assert found["winners"][2] is None, "two systems share the first place"


def rows() -> list[where_map.Row]:
    one = {"model": "m", "workload": "code", "slo": "strict", "experts": True, "capacity_rps": 12.0}
    other = {**one, "model": "n", "experts": False}
    served = [
        {**one, **where_map.verdicts(HIGHEST, attainments(split=0.9))},
        {**other, **where_map.verdicts({CHUNK: 10.0, SIZED: 8.0, SPLIT: 8.0}, attainments(chunk=0.9, fusion=0.99))},
    ]
    return [*served, {**other, "slo": "loose", "capacity_rps": 0.0}]


def test_the_summary_counts_the_places() -> None:
    found = where_map.summary(rows()[:2])
    assert found["split"] == {"disaggregated": 1, "tie": 0, "co-located": 1, "all": 2}
    assert (found["least_gain"], found["most_gain"]) == (0.8, 1.2)
    assert found["by"]["experts"]["True"]["disaggregated"] == found["by"]["experts"]["False"]["co-located"] == 1
    assert found["loads"]["1"] == {
        "disaggregated": 1, "tie": 0, "co-located": 1, "all": 2, "plugin_ahead": 1, "stock_ahead": 1,
    }  # fmt: skip


@pytest.mark.moderate
def test_the_map_says_where_nobody_serves_and_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where_map, "RESULTS", tmp_path)
    where_map.draw(rows())
    first = (tmp_path / "where.svg").read_text(encoding="utf-8")
    where_map.draw(rows())
    assert first == (tmp_path / "where.svg").read_text(encoding="utf-8")
    assert [text in first for text in ("<!-- serves -->", "<!-- run -->", "<!-- +20 -->")] == [True, True, True]


def test_every_place_has_a_profile_that_its_workers_fit(folder: Path) -> None:
    every = where.places(folder)
    assert len(every) == len(where.MODELS) * len(where.WORKLOADS) * len(where.OBJECTIVES) == 42
    for place in where.places(folder, ["conversation", "middle"]):
        parsed = parse(place.config())
        assert parsed.deployment.profile == place.hardware
        assert parsed.deployment.gpu_budget == place.on.tp * 4
        assert place.objectives()["ttft_s"] > 0


def first(tried: dict[str, cells.Config]) -> dict[str, cells.Config]:
    return dict(list(tried.items())[:1])


@pytest.mark.long
def test_one_place_is_made_of_real_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PER_WORKER", 10)
    monkeypatch.setattr(cells, "SETTLE_S", 2.0)
    monkeypatch.setattr(where, "systems", lambda place: {name: first(tried) for name, tried in systems(place).items()})
    row = where.examined(where.places(folder, ["h100/llama", "conversation", "middle"])[0], search.Memory())
    assert row["capacity_rps"] == max(row["highest_rps"].values()) > 0
    assert set(row["attainment"]) == {*STOCK, *where.PLUGINS}
    assert max(row["attainment"][name][-1] for name in STOCK) >= 0.85, "the capacity is that of a stock system"
    assert next(where.told(row)).startswith("h100/llama-3.1-70b-fp8 conversation middle: ")


def test_fusion_alone_takes_the_others_from_the_last_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = where.Place("h100/llama-3.1-70b-fp8", "conversation", "middle", folder)
    last = {"model": place.hardware, "workload": place.workload, "slo": place.slo, "capacity_rps": 10.0}
    last |= {"highest_rps": HIGHEST, "attainment": attainments(sized=0.7, fusion=0.0)}
    monkeypatch.setattr(where.manifest, "read", lambda result: {"rows": [{**last, "slo": "strict"}, last]})
    row = where.with_fusion(place, search.Memory())
    assert {name: of for name, of in row["attainment"].items() if name != "fusion"} == {
        name: of for name, of in last["attainment"].items() if name != "fusion"
    }
    assert min(row["attainment"]["fusion"]) > 0.9
    assert row["winners"][-1] == "fusion"
