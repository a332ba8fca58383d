"""The judge of the fault runs finds what no fault may bring about, also in the published runs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faults
import manifest
import pytest

from benchmarks.rig.faults import Came, Tally
from tests.benchmarks.old_results import OLD

Run = dict[str, Any]
NONE = {"right": 5, "clear error": 0, "client left": 0, "wrong": 0, "hung": 0}
SERVER = {"kv_tokens": 0, "requests": 0, "threads": 60, "files": 300, "rss_mib": 2000, "processes": 4}
GATEWAY = {"threads": 6, "files": 16, "rss_mib": 80, "processes": 1}
HELD = {"a": SERVER, "b": SERVER, "gateway": GATEWAY}
SOUND: Run = {
    "kinds": {"client leaves": {"faults": 5, "requests": NONE}, "gateway is killed": {"faults": 1, "requests": NONE}},
    "without faults": {"before": {"requests": NONE}, "after": {"requests": NONE}},
    "held": [{"faults": at, **HELD} for at in (0, 3, 6)],
    "compared from": {"a": 0, "b": 0, "gateway": 1},
    "complaints": [],
    "control": {"noticed": True},
}


def copy() -> Run:
    found: Run = json.loads(json.dumps(SOUND))
    return found


def asked(run: Run, came: str) -> None:
    run["kinds"]["client leaves"]["requests"][came] = 1


def afterwards(run: Run, came: str) -> None:
    run["without faults"]["after"]["requests"][came] = 1


def held(run: Run, process: str, name: str, more: int) -> None:
    run["held"][-1][process][name] += more


def test_a_run_in_which_all_is_well_has_no_defect() -> None:
    clear = copy()
    asked(clear, "clear error")
    asked(clear, "client left")
    assert faults.defects(SOUND) == faults.defects(clear) == []


@pytest.mark.parametrize(
    ("harm", "defect"),
    [
        (lambda run: asked(run, "wrong"), "client leaves: 1 wrong"),
        (lambda run: asked(run, "hung"), "client leaves: 1 hung"),
        (lambda run: afterwards(run, "wrong"), "without faults, after: 1 wrong"),
        (lambda run: afterwards(run, "clear error"), "without faults, after: 1 clear error"),
        (lambda run: held(run, "a", "kv_tokens", 16), "a: kv_tokens grew"),
        (lambda run: held(run, "b", "requests", 1), "b: requests grew"),
        (lambda run: held(run, "a", "files", 40), "a: files grew"),
        (lambda run: held(run, "gateway", "files", 40), "gateway: files grew"),
        (lambda run: run["control"].update(noticed=False), "control: nobody noticed"),
        (lambda run: run["complaints"].append("a: token_to_kv_pool_allocator memory leak"), "memory leak"),
    ],
)
def test_what_no_fault_may_bring_about_is_found(harm: Callable[[Run], None], defect: str) -> None:
    run = copy()
    harm(run)
    (found,) = faults.defects(run)
    assert defect in found


class Leaky:
    """A stage on which each fault leaves ten open files in every process, until that process is killed."""

    def __init__(self, tree: Path) -> None:
        self.a = SimpleNamespace(tree=tree)
        self.files = dict.fromkeys(faults.PROCESSES, 100)

    async def held(self) -> dict[str, dict[str, int]]:
        return {process: {"files": count} for process, count in self.files.items()}

    def complaints(self) -> list[str]:
        return []


@pytest.fixture
def leaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leaky:
    (tmp_path / "sglang-9.dist-info").mkdir()
    stage = Leaky(tmp_path)

    def fault(kind: str) -> Callable[..., Any]:
        async def make(stage: Leaky, dice: random.Random, count: int, tally: Tally) -> None:
            tally.faults += count
            for process in faults.PROCESSES:
                stage.files[process] += 10 * count
            stage.files |= dict.fromkeys(faults.DEATHS.get(kind, ()), 100)

        return make

    async def all_is_well(stage: Leaky, dice: random.Random, count: int, tally: Tally) -> None:
        tally.requests[Came.RIGHT] += count

    monkeypatch.setattr(faults, "FAULTS", {kind: fault(kind) for kind in faults.FAULTS})
    monkeypatch.setattr(faults, "all_is_well", all_is_well)
    return stage


def test_a_leak_is_seen_on_the_processes_that_live_longest(leaky: Leaky) -> None:
    dice = random.Random(1)
    plan = faults.batches(faults.SHARES, 1000, 10, dice)
    run = asyncio.run(faults.Soak(leaky, dice, plan).run())
    for process in faults.PROCESSES:
        first, last = run["held"][run["compared from"][process]], run["held"][-1]
        assert first[process]["files"] == 100
        assert last[process]["files"] == 100 + 10 * (1010 - first["faults"])
    assert run["held"][run["compared from"]["a"]]["faults"] < 1010 * 2 / 3
    assert sum(row["faults"] for row in run["kinds"].values()) == 1010
    assert [found.partition(":")[0] for found in faults.defects(run)] == ["a", "b", "gateway"]
    assert {row["requests"]["right"] for row in run["without faults"].values()} == {48}


def test_what_began_anew_is_compared_from_there() -> None:
    run = copy()
    run["held"][0]["a"]["files"] = 900
    run["compared from"]["a"] = 1
    held(run, "a", "files", 40)
    assert faults.defects(run) == ["a: files grew from 300 to 340"]


@pytest.mark.parametrize("seed", range(20))
def test_the_second_half_of_the_faults_hits_processes_that_live(seed: int) -> None:
    """The gateway dies first, servers among the first half of what follows."""
    kinds = [kind for kind, _ in faults.batches(faults.SHARES, 1000, 10, random.Random(seed))]
    first = kinds.count("gateway is killed")
    assert kinds[:first] == ["gateway is killed"] * first
    assert kinds.count("side is killed") == 10
    assert "side is killed" not in kinds[(first + len(kinds)) // 2 + 10 :]
    assert "side is killed" in kinds[first : len(kinds) // 2]


def test_the_shares_are_all_there_is() -> None:
    made = faults.batches(faults.SHARES, 1000, 0, random.Random(0))
    assert sum(count for _, count in made) == 1000
    assert {kind for kind, _ in made} == faults.FAULTS.keys() - {"side is killed"}


@pytest.mark.parametrize("name", [name for name in ("faults-0.5.16", "faults-0.5.23") if name not in OLD])
def test_the_published_run_has_the_defects_that_it_says(name: str) -> None:
    run = manifest.read(name)
    assert faults.defects(run) == run["defects"] == []
    assert sum(row["faults"] for row in run["kinds"].values()) >= 1000
    assert run["kinds"]["side is killed"]["faults"] >= 10
    assert run["control"]["requests"]["wrong"] > 0
