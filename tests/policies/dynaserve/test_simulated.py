"""Both schedulers in the simulator: a short run keeps the SLO that plain chunked prefill breaks."""

from __future__ import annotations

import pytest

from pdplugins.config import find, load, parse
from pdplugins.results import Result
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import TraceRequest


def run(**changes: object) -> Result:
    data = load(find("dynaserve")).model_dump(mode="json") | changes
    trace = [TraceRequest(index / 3, 1 + index * 7919 % 4000, 1 + index * 104729 % 400) for index in range(150)]
    return simulate(parse(data), trace, trace_name="synthetic", command="test", seed=0)[0]


def test_no_request_is_lost_and_no_policy_fails() -> None:
    result = run()
    assert result.requests.failed == 0
    assert not [count for count in result.counts if count.startswith("faults")]


def test_steps_keep_the_slo_that_large_chunks_break() -> None:
    """Figure 11 in small: P99 of the time between tokens."""
    kept = run().metrics.tbt_s.p99
    broken = run(batch_scheduler=None, router={"name": "round-robin", "colocated": True}).metrics.tbt_s.p99
    assert kept is not None
    assert broken is not None
    assert kept <= 0.105
    assert broken > 0.15


@pytest.mark.parametrize("predictor", ["mean", "quantile"])
def test_a_learning_predictor_is_told_the_lengths(predictor: str) -> None:
    """Without an oracle the router learns from the answers, and nothing fails."""
    blind = run(router={"name": "dynaserve", "predictor": predictor}, simulation={"predict": "nothing"})
    assert blind.requests.failed == 0
    assert not [count for count in blind.counts if count.startswith("faults")]


@pytest.mark.moderate
def test_workers_that_hand_over_to_each_other_do_not_get_stuck() -> None:
    """Full KV caches on both sides: who cannot go on decodes where it is, and everything ends in time."""
    simulation = {"overlap": True, "predict": "true_length", "kv_tokens": 9000}
    tight = run(simulation=simulation)
    assert tight.requests.failed == 0
    assert tight.speed.duration_s < 300, "a timeout of 300 s must not be what frees them"
