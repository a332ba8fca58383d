"""Views made by hand have all that the contracts name, and model times are the sums that they say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from pdplugins import testing
from pdplugins.testing import LinearModel, Load, Worker, deployment, flat_model, fleet, planner_view, request, worker
from pdplugins.types import LoadView, PlannerView, Pool, Role, Traffic, WorkerLoad, WorkerView


def attributes(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("protocol", "view"), [(WorkerView, Worker("p0", Role.PREFILL)), (LoadView, Load()), (LoadView, WorkerLoad("w"))]
)
def test_a_view_has_every_attribute_of_its_protocol_and_no_other(protocol: type, view: object) -> None:
    assert attributes(protocol) == set(view.__dataclass_fields__)  # type: ignore[attr-defined]


def test_a_worker_has_the_role_of_its_name_and_says_what_it_is_told() -> None:
    one = worker("p3", queued_tokens=70, tp=2, kv_capacity_tokens=5)
    assert (one.role, one.load.worker, one.load.queued_tokens, one.tp, one.kv_capacity_tokens) == (
        Role.PREFILL,
        "p3",
        70,
        2,
        5,
    )
    assert (one.free_kv_tokens, one.capabilities, one.load.decode_requests) == (None, None, None)
    assert worker("p3", Role.DECODE).role is Role.DECODE


def test_a_fleet_says_everything() -> None:
    workers = fleet(2, 1, queued_tokens=9)
    assert [(one.id, one.role) for one in workers] == [
        ("p0", Role.PREFILL),
        ("p1", Role.PREFILL),
        ("d0", Role.DECODE),
    ]
    for one in workers:
        assert None not in (one.tp, one.free_kv_tokens, one.capabilities)
        assert None not in (one.load.decode_requests, one.load.decode_tokens, one.load.prefill_tokens)
        assert one.load.queued_tokens == 9


def test_a_view_of_a_planner_is_told_by_its_rate() -> None:
    assert planner_view(3.0, 2.0) == PlannerView(3.0, Traffic(5.0, 10.0, 1000.0, 100.0), Pool(1), Pool(1))
    assert planner_view(rate=None).traffic is None


def test_requests_and_deployments_take_what_they_are_told() -> None:
    assert request("a", 7, session="s").session == "s"
    assert deployment(gpu_budget=3, ttft_s=0.5).gpus(1, 2) == 3
    assert deployment(ttft_s=0.5).slo.ttft_s == 0.5


def test_times_are_sums() -> None:
    model = LinearModel(1, 2, 3, 10, 20, 30, 100, 200, kv_tokens=50, scales=True)
    assert model.prefill_s(2, 1) == 1 + 4 + 12
    assert model.prefill_s(2, 2) == (1 + 4 + 12) / 2
    assert model.decode_step_s(2, 3, 1) == 10 + 2 * (20 + 90)
    assert model.transfer_s(2) == 500
    assert model.kv_capacity_tokens(4) == 200
    flat = flat_model()
    assert flat.prefill_s(1, 1) == flat.prefill_s(10**6, 2)
    assert flat.decode_step_s(1, 1, 1) == flat.decode_step_s(64, 10**5, 2)


@pytest.mark.moderate
def test_the_product_does_not_import_it_and_it_needs_no_test_framework() -> None:
    root = Path(testing.__file__).parents[1]
    for source in root.rglob("*.py"):
        if source.is_relative_to(root / "testing"):
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith("pdplugins.testing")], source
    code = "import sys, pdplugins.testing; print([m for m in ('pytest', 'hypothesis') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
