"""The comparison of live routers: every router is in it, and a cell that is there is not measured again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import live_routers
import pytest

from pdplugins.registry import default_registry
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies


def test_every_router_plugin_and_every_mode_is_compared() -> None:
    ours = {way.router for way in live_routers.WAYS if not way.native}
    # Other tests of this process may have registered the routers with old loads of benchmarks/fusion/stale.py.
    assert {name for name in default_registry().names("router") if not name.startswith("old-")} <= ours
    assert {way.router for way in live_routers.WAYS if way.native} == {
        "round-robin",
        "kv",
        "power-of-two",
        "least-loaded",
    }


@pytest.mark.parametrize("way", live_routers.WAYS, ids=lambda way: way.name)
def test_every_way_has_the_same_workers_and_nothing_that_dynamo_does_not_ask(way: live_routers.Way) -> None:
    config = way.config()
    deployment = build_deployment(config)
    assert deployment.gpus(config.deployment.prefill.replicas, config.deployment.decode.replicas) == 8
    policies = build_policies(config, deployment)
    assert policies.router() is not None
    assert (policies.planner(), policies.batch_scheduler(), policies.power()) == (None, None, None)
    assert (policies.flow() is not None) == (way.name == "fusion")


def arguments(path: Path, **more: Any) -> argparse.Namespace:
    fixed = {
        "trace": "azure-like",
        "rate": 4.0,
        "clip_s": 5.0,
        "seed": 1,
        "rounds": 2,
        "most": 100,
        "only": ["arrow", "dopd"],
    }
    return argparse.Namespace(cells=path, **{**fixed, **more})


def test_cells_that_are_there_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def measured(way: live_routers.Way, requests: list[Any], seed: int) -> dict[str, Any]:
        asked.append(f"{way.name} {seed} {len(requests)}")
        return {
            "requests": len(requests),
            "failed": 0,
            "ttft_ms": 1.0,
            "ttft_p90_ms": 1.0,
            "itl_ms": 1.0,
            "attainment": 1.0,
            "cores": {},
        }

    monkeypatch.setattr(live_routers, "measured", measured)
    path = tmp_path / "cells.jsonl"
    live_routers.run(arguments(path, most=3))
    live_routers.run(arguments(path))
    live_routers.run(arguments(path))
    cells = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(asked) == len(cells) == 4
    assert {(cell["way"], cell["round"]) for cell in cells} == {
        (way, turn) for way in ("arrow", "dopd") for turn in (0, 1)
    }
    arrow = live_routers.WAYS[4]
    assert arrow.name == "arrow"
    assert live_routers.simulated(arrow, cells[0])["simulated"]["ttft_ms"] > 0
    live_routers.report(argparse.Namespace(cells=path, result=None))


def cell(live: float, simulated: float, as_slow: float | None = None) -> dict[str, Any]:
    times = dict.fromkeys(("ttft_ms", "ttft_p90_ms", "itl_ms"), live)
    cores = {"client": 0.1, "router": 0.5 + live / 1000}
    told = dict.fromkeys(times, simulated)
    slow = {"slower": 1.02, "as_slow": {"ttft_ms": as_slow or simulated}}
    return {"live": {**times, "failed": 0, "cores": cores}, "simulated": told, **slow}


@pytest.mark.parametrize(("live", "near"), [(105.0, True), (95.0, True), (115.0, False), (85.0, False)])
def test_what_is_not_near_has_a_reason(live: float, near: bool) -> None:
    way = next(way for way in live_routers.WAYS if way.name == "arrow")
    (row,) = live_routers.summary(way, [cell(live, 100.0), cell(live + 1, 100.0), cell(live - 1, 100.0)])
    assert row["near"] is near
    assert bool(row["why"]) is not near
    assert row["ttft_ms"]["ratio"] == pytest.approx(live / 100)
    assert (row["router_cores"], row["cores"]) == pytest.approx((0.5 + live / 1000, 0.6 + live / 1000), abs=0.006)


def test_a_ttft_that_slower_steps_explain_is_told_from_one_that_they_do_not() -> None:
    way = next(way for way in live_routers.WAYS if way.name == "arrow")
    for as_slow, explained in ((110.0, True), (101.0, False)):
        one = cell(115.0, 100.0, as_slow)
        one["live"]["itl_ms"] = 102.0
        (row,) = live_routers.summary(way, [one])
        assert not row["near"]
        assert (row["why"] == live_routers.SLOWER) is explained


def test_slower_steps_make_queues_longer_than_that() -> None:
    """The rest is the same load: without queues, times grow by the factor itself."""
    way = next(way for way in live_routers.WAYS if way.name == "stock round-robin")
    for rate, queues in ((0.2, False), (12.0, True)):
        args = argparse.Namespace(rate=rate, clip_s=20.0 if queues else 200.0, trace="azure-like", seed=1)
        requests = live_routers.traffic(args, 0)
        told, slower = (live_routers.predicted(way, requests, 1, factor) for factor in (1.0, 1.02))
        assert slower["itl_ms"] / told["itl_ms"] == pytest.approx(1.02, abs=0.01)
        assert (slower["ttft_ms"] / told["ttft_ms"] > 1.04) == queues
