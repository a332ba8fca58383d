"""What is tried: every system on exactly the GPUs that there are, with its objectives and profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdplugins.registry import Plugin, default_registry
from pdplugins.runtime.assembly import build_deployment
from pdplugins.studies.advise.candidates import COLOCATED, SPLIT, Candidate, Question, systems
from tests.studies.advise.questions import QUESTION


def cells(asked: Question, gpus: int) -> list[Candidate]:
    return [cell for rank, one in enumerate(systems(asked)) for cell in one.cells(asked, gpus, rank)]


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_fixed_pools_use_every_gpu_and_scalers_at_most_that(gpus: int) -> None:
    found = cells(replace(QUESTION, gpus=16), gpus)
    for cell in found:
        deployment = build_deployment(cell.config)
        pools = cell.config.deployment
        held = deployment.gpus(pools.prefill.replicas, pools.decode.replicas)
        assert held <= gpus if cell.scales else held == gpus, cell.name
        assert (deployment.slo.ttft_s, pools.profile) == (QUESTION.ttft_s, QUESTION.profile)
    assert len({cell.key for cell in found}) == len(found)


def test_workers_of_each_size_are_tried_although_some_gpus_are_left_over() -> None:
    """Of seven GPUs only workers of one GPU use all: co-location of larger ones would not have been tried."""
    asked = replace(QUESTION, profile="h100/llama-3.1-70b-fp8", gpus=7, longest_tokens=1000)
    found = [cell for cell in cells(asked, 7) if cell.system in (COLOCATED, "rapid", "fusion")]
    held = {}
    for cell in found:
        pools = cell.config.deployment
        held[pools.prefill.tp] = pools.prefill.replicas + pools.decode.replicas
        if cell.config.power:
            assert cell.config.power.settings["budget_w"] == 600.0 * held[pools.prefill.tp] * int(pools.prefill.tp)
    assert held == {1: 7, 2: 3, 4: 1}
    assert {cell.config.deployment.prefill.tp for cell in cells(asked, 5) if cell.system == COLOCATED} == {1}


def test_every_plugin_is_tried() -> None:
    names = {cell.system for cell in cells(QUESTION, 4)}
    assert names >= {COLOCATED, SPLIT, "dopd", "ampd", "arrow", "dynaserve", "rapid", "fusion", "fusion, scaling"}


def test_co_location_is_tuned() -> None:
    chunks = {cell.config.simulation.step_tokens for cell in cells(QUESTION, 4) if cell.system == COLOCATED}
    assert len(chunks) >= 4


def test_sizes_that_do_not_hold_the_longest_request_are_not_tried() -> None:
    asked = replace(QUESTION, profile="h100/llama-3.1-70b-fp8", longest_tokens=30_000)
    assert {cell.config.deployment.prefill.tp for cell in cells(asked, 8)} == {2, 4}


def test_the_watts_of_rapid_go_with_the_gpus() -> None:
    watts = {
        gpus: {c.config.power.settings["budget_w"] for c in cells(QUESTION, gpus) if c.config.power} for gpus in (4, 8)
    }
    assert watts == {4: {2400.0}, 8: {4800.0}}


def test_repeated_prompts_get_a_router_that_sees_caches() -> None:
    (router,) = {
        c.config.router.name for c in cells(replace(QUESTION, repeats=True), 4) if c.system == SPLIT and c.config.router
    }
    assert router == "cache-aware"


def test_plugins_of_other_packages_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = default_registry()
    theirs = Plugin("theirs", "their-package", "1")
    moved = [replace(one, plugin=theirs) if one.name == "threshold" else one for one in registry.registrations()]
    monkeypatch.setattr(type(registry), "registrations", lambda _: moved)
    assert {cell.scales for cell in cells(QUESTION, 3) if cell.system == "threshold"} == {True}
