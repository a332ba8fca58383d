"""A start with too few workers: the first plan comes within seconds, in the simulator too."""

from __future__ import annotations

from pdplugins.config import parse
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest


def first_change_s(rate: float, output_tokens: int) -> float:
    """Return when the first worker is requested, of a host that starts with 1P1D under full load."""
    trace = [TraceRequest(at / rate, 2000, output_tokens) for at in range(round(20 * rate))]
    deployment = {"profile": "h100/llama-3.1-70b-fp8", "gpu_budget": 64, "startup_s": 30}
    config = parse({"deployment": deployment, "planner": "dopd"}, "test")
    return min(change.at_s for change in simulate(config, trace, trace_name="steady", command="test")[0].scaling)


def test_the_first_workers_are_requested_when_the_first_requests_have_ended() -> None:
    assert first_change_s(20.0, 5) <= 2.0, "the interval is 5 s"


def test_before_anything_ended_nobody_knows_how_much_work_a_request_is() -> None:
    assert 5.0 < first_change_s(20.0, 200) <= 15.0
