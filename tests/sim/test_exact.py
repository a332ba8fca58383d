"""The engine that jumps over steps agrees with the one that takes every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from tests.sim.cases import cases, simulate
from tests.sim.reference import PlainEngine
from tests.sim.runs import needs_sources


@needs_sources
@given(cases())
@settings(max_examples=300)
def test_every_request_has_the_same_times_as_token_by_token(case: dict[str, Any]) -> None:
    fast, plain = simulate(case), simulate(case, PlainEngine)
    assert fast.records == plain.records
    assert not [
        record for record in fast.records if record.error == "no worker to serve it" and not case["settings"].deaths
    ]
    assert (fast.preemptions, fast.retries, fast.gpu_hours) == (plain.preemptions, plain.retries, plain.gpu_hours)
    assert fast.scaling == plain.scaling
    assert fast.energy_j == pytest.approx(plain.energy_j, rel=1e-9)
    assert not {kind: count for kind, count in fast.policies.faults.items() if kind != "router"}


@pytest.mark.parametrize("engine", [Engine, pytest.param(PlainEngine, marks=needs_sources)])
def test_every_request_ends_once(engine: type[Any]) -> None:
    """Sanity of the reference itself: nothing is lost and every answer has its tokens."""
    workload = [Arrival(0.05 * n, 100 + 37 * n % 900, 1 + 13 * n % 70) for n in range(60)]
    case = {"workload": workload, "settings": SimSettings(2, 2, kv_tokens=6000), "seed": 1, "kinds": "PLSO"}
    records = simulate(case, engine).records
    assert sorted(int(record.id) for record in records) == list(range(60))
    assert all(record.error is None and record.ttft_s and record.ttft_s > 0 for record in records)


@needs_sources
def test_a_request_that_starts_anew_and_waits_for_kv_capacity_goes_on_waiting() -> None:
    """It has had a token when its first worker dies; it asks for KV capacity while its prompt is computed again."""
    settings = SimSettings(
        prefill=2,
        engine=EngineSettings(step_tokens=128, max_batch=2),
        first_token="prefill",
        overlap=True,
        deaths=((0.5, "p0"),),
    )
    workload = [Arrival(0.0, 100, 400), Arrival(0.0, 100, 300), Arrival(0.1, 500, 20)]
    case = {"settings": settings, "seed": 0, "kinds": "R", "workload": workload}
    fast, plain = simulate(case), simulate(case, PlainEngine)
    assert fast.records == plain.records
    assert [(record.decode_worker, record.error) for record in fast.records] == [("d0", None)] * 3
    assert fast.retries == 1
