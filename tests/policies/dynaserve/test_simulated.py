"""Both schedulers in the simulator: SLOs that are kept, idle pools that split nothing, busy ones where splits pay."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean, median

import pytest

from pdplugins.config import find, load, parse
from pdplugins.results import Result
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import Terms, TraceRequest

COLOCATED = {"name": "least-loaded", "colocated": True}


def run(**changes: object) -> Result:
    data = load(find("dynaserve")).model_dump(mode="json") | changes
    trace = [TraceRequest(index / 3, 1 + index * 7919 % 4000, 1 + index * 104729 % 400) for index in range(150)]
    return simulate(parse(data), trace, trace_name="synthetic", command="test", seed=0)[0]


CHATS = (6.7, 0.8), (5.1, 0.7)
"""Log-normal prompts and answers: 1,120 and 210 tokens on average."""
SUMMARIES = (7.8, 0.4), (5.0, 0.6)
"""2,650 and 180 tokens."""


def poisson(lengths: tuple[tuple[float, float], tuple[float, float]], rate: float, count: int) -> list[TraceRequest]:
    rng, now_s, trace = random.Random(0), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        trace.append(TraceRequest(now_s, *[int(rng.lognormvariate(*length)) + 1 for length in lengths]))
    return trace


def serve(
    profile: str, tp: int, workers: int, router: dict[str, object], trace: list[TraceRequest]
) -> tuple[Result, RunOutcome]:
    """Run a pool whose steps DynaServe's batch scheduler fills."""
    data = {
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "deployment": {
            "profile": profile,
            "gpu_budget": tp * workers,
            "prefill": {"replicas": workers // 2, "tp": tp},
            "decode": {"replicas": workers - workers // 2, "tp": tp},
        },
        "router": router,
        "batch_scheduler": {"name": "dynaserve"},
        "simulation": {"overlap": True},
    }
    return simulate(parse(data), trace, trace_name="chats", command="test", seed=0)


def ttfts_s(outcome: RunOutcome) -> list[float]:
    """Return the times to first token in the order of arrival."""
    records = sorted(outcome.records, key=lambda record: int(record.id))
    return [record.ttft_s for record in records if record.ttft_s is not None]


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


@pytest.mark.parametrize("router", [{"name": "dynaserve"}, COLOCATED], ids=["dynaserve", "its steps alone"])
def test_a_tbt_that_no_worker_keeps_stops_nobody(router: dict[str, object]) -> None:
    """The shortest step takes 25 ms. Beside any decode a TBT of 20 ms leaves no prompt a token."""
    data = load(find("dynaserve")).model_dump(mode="json") | {"slo": {"ttft_s": 2.0, "tpot_s": 0.02}, "router": router}
    result = simulate(parse(data), poisson(CHATS, 8.0, 300), trace_name="chats", command="test", seed=0)[0]
    assert result.metrics.ttft_s.p90 is not None
    assert result.metrics.ttft_s.p90 < 2.0


@pytest.mark.moderate
def test_a_prefix_that_workers_have_cached_is_no_work() -> None:
    """Counted as prefill it makes every worker look busy for minutes, and prompts go to those that look less so."""
    prefix, times = tuple(range(16)), (request.arrival_s for request in poisson(CHATS, 30.0, 3000))
    trace = [TraceRequest(at_s, 16 * 512 + 80, 100, blocks=(*prefix, -number)) for number, at_s in enumerate(times)]
    data = load(find("dynaserve")).model_dump(mode="json")
    result = simulate(parse(data), trace, trace_name="prefixes", command="test", seed=0)[0]
    assert result.metrics.slo_attainment is not None
    assert result.metrics.slo_attainment > 0.99


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("profile", "tp", "workers", "rate"),
    [
        ("a100/qwen2.5-14b", 1, 8, 4.0),
        ("a100/qwen2.5-14b", 1, 2, 1.5),
        ("h100/llama-3.1-70b-fp8", 2, 4, 4.0),
        ("h100/llama-3.1-8b", 1, 4, 10.0),
        ("mi300x/llama-3.1-8b", 1, 2, 5.0),
    ],
)
def test_an_idle_pool_is_as_fast_as_colocation(profile: str, tp: int, workers: int, rate: float) -> None:
    """Section 3.1: where the pool is underused no request is split, and the median TTFT is that of co-location."""
    trace = poisson(CHATS, rate, 300)
    outcome = serve(profile, tp, workers, {"name": "dynaserve"}, trace)[1]
    ours, theirs = ttfts_s(outcome), ttfts_s(serve(profile, tp, workers, COLOCATED, trace)[1])
    assert outcome.handoffs == 0
    assert median(ours) <= 1.06 * median(theirs)
    assert median(one / other for one, other in zip(ours, theirs, strict=True)) <= 1.02
    assert fmean(ours) <= 1.02 * fmean(theirs)


@pytest.mark.moderate
@pytest.mark.parametrize(("workers", "rate", "count"), [(2, 4.5, 450), (8, 20.0, 900)])
def test_splits_serve_more_than_colocation(workers: int, rate: float, count: int) -> None:
    """Near saturation fewer workers read the weights to decode: more requests are inside both SLOs than with no split.

    The rival has the same batch scheduler on the same GPUs.
    """
    trace = poisson(SUMMARIES, rate, count)
    ours, outcome = serve("a100/qwen2.5-14b", 1, workers, {"name": "dynaserve"}, trace)
    theirs = serve("a100/qwen2.5-14b", 1, workers, COLOCATED, trace)[0]
    assert outcome.handoffs > count / 4
    assert ours.metrics.slo_attainment is not None
    assert theirs.metrics.slo_attainment is not None
    assert ours.metrics.slo_attainment > theirs.metrics.slo_attainment + 0.1


@pytest.mark.parametrize(("rate", "least"), [(9.0, 0.8), (5.0, 0.9)])
def test_a_strict_tbt_leaves_most_requests_in_time(rate: float, least: float) -> None:
    """Beside decodes 70 to 125 tokens fit into 50 ms. A pool with so little room for prompts is not underused."""
    data = load(find("dynaserve")).model_dump(mode="json") | {"slo": {"ttft_s": 2.0, "tpot_s": 0.05}}
    trace = poisson(((6.9, 0.7), (5.0, 0.6)), rate, int(120 * rate))
    result = simulate(parse(data), trace, trace_name="chats", command="test", seed=0)[0]
    assert result.metrics.slo_attainment is not None
    assert result.metrics.slo_attainment > least


@pytest.mark.parametrize("predictor", ["mean", "quantile"])
def test_a_learning_predictor_is_told_the_lengths(predictor: str) -> None:
    """Without an oracle the router learns from the answers, and nothing fails."""
    blind = run(router={"name": "dynaserve", "predictor": predictor}, simulation={"predict": "nothing"})
    assert blind.requests.failed == 0
    assert not [count for count in blind.counts if count.startswith("faults")]


@pytest.mark.parametrize("every", [20, 5])
def test_a_few_requests_with_a_strict_tpot_leave_the_others_in_time(every: int) -> None:
    """They ask for 40 ms of 80. Spread over all workers they leave so little prefill that half of all are late."""
    trace = [
        replace(one, terms=Terms(tpot_s=0.04)) if index % every == 0 else one
        for index, one in enumerate(poisson(((6.9, 0.7), (5.0, 0.6)), 9.0, 1000))
    ]
    config = load(find("dynaserve"))
    records = simulate(config, trace, trace_name="chats", command="test", seed=0)[1].records
    late = 0
    for record in records:
        tpot_s = config.slo.tpot_s if int(record.id) % every else 0.04
        late += record.ttft_s is None or record.ttft_s > config.slo.ttft_s or (record.tpot_s or 0.0) > tpot_s
    assert late < 0.02 * len(trace)


@pytest.mark.moderate
@pytest.mark.parametrize("split", ["prompt", "balanced"])
def test_workers_that_hand_over_to_each_other_do_not_get_stuck(split: str) -> None:
    """Full KV caches on both sides: who cannot go on decodes where it is, and everything ends in time."""
    router = {"name": "dynaserve", "pairs": "any", "split": split, "underused": 0}
    tight = run(router=router, simulation={"overlap": True, "kv_tokens": 9000})
    assert tight.requests.failed == 0
    assert tight.speed.duration_s < 300, "a timeout of 300 s must not be what frees them"
