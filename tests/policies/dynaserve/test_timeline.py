"""The execution predictor against the simulator's own timeline, and what it does with reports."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from pdplugins.config import Config, parse
from pdplugins.policies.dynaserve.batching import DynaServeBatchScheduler
from pdplugins.policies.dynaserve.config import DynaServeBatchSettings
from pdplugins.policies.dynaserve.passes import PassCosts
from pdplugins.policies.dynaserve.play import Leg
from pdplugins.policies.dynaserve.timeline import Timeline
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.run.setup import sim_settings
from pdplugins.types import Deployment, Placement, Request, WorkerView
from tests.policies.dynaserve.model import Model, deployment_of

TOLERANCE = 0.1
"""Of the time from the arrival of a request to its end; beside one pass of 0.1 s, at the end of which a token comes."""
PROFILES = [("a100/qwen2.5-14b", 1), ("h100/llama-3.1-70b-fp8", 2), ("a100/llama-3.1-8b", 1)]
Load = list[tuple[float, int, int]]
"""Arrival in seconds, prompt and output tokens."""


class At:
    """Cuts every request at one token, or leaves it whole on the first worker."""

    def __init__(self, split: int | None = None) -> None:
        self.split = split

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        first, second = workers[0].id, workers[0 if self.split is None else 1].id
        return Placement(first, second, request.prompt_tokens if self.split is None else self.split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        return placement


def poisson(rate: float, count: int, prompt: tuple[float, float], output: tuple[float, float]) -> Load:
    rng, now_s, load = random.Random(1), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        load.append((now_s, int(rng.lognormvariate(*prompt)) + 1, int(rng.lognormvariate(*output)) + 2))
    return load


LOADS: dict[str, Load] = {
    "a request alone": [(0.0, 219, 1467)],
    "a long prompt": [(0.0, 8192, 32)],
    "chats at once": [(0.0, 1000, 200)] * 20,
    "reasoning at once": [(0.0, 219, 1467)] * 60,
    "prompts at once": [(0.0, 4000, 8)] * 20,
    "chats": poisson(3.0, 60, (6.5, 0.8), (5.0, 0.7)),
    "chats near saturation": poisson(4.5, 60, (6.5, 0.8), (5.0, 0.7)),
    "long prompts": poisson(1.2, 40, (8.2, 0.4), (3.5, 0.7)),
    "reasoning": poisson(2.0, 60, (5.3, 0.4), (7.0, 0.4)),
}


def built(profile: str, tp: int) -> tuple[Config, Deployment]:
    pool = {"replicas": 1, "tp": tp}
    config = parse(
        {
            "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
            "deployment": {"profile": profile, "gpu_budget": 2 * tp, "prefill": pool, "decode": pool},
            "batch_scheduler": {"name": "dynaserve"},
            "simulation": {"overlap": True, "first_token": "prefill"},
        }
    )
    return config, build_deployment(config)


def simulated_end_s(config: Config, deployment: Deployment, load: Sequence[tuple[float, int, int]], at: At) -> float:
    """Return when the last request of `load` ends in the simulator."""
    outcome = Simulation(
        deployment, sim_settings(config, deployment), at,
        batch_scheduler=lambda: DynaServeBatchScheduler(DynaServeBatchSettings(), deployment),
    ).run([Arrival(*request) for request in load])  # fmt: skip
    end_s = next(record.finish_s for record in outcome.records if record.id == str(len(load) - 1))
    assert end_s is not None
    return end_s


@pytest.mark.moderate
@pytest.mark.parametrize("profile", PROFILES, ids=[name for name, _ in PROFILES])
@pytest.mark.parametrize("load", LOADS)
def test_a_request_ends_when_the_simulator_says(profile: tuple[str, int], load: str) -> None:
    """Section 4.1: each decode advances one token in each pass. What would come later is left out: nobody knows it."""
    config, deployment = built(*profile)
    costs = PassCosts(deployment)
    timeline, predicted = Timeline(costs), []
    for arrival_s, prompt, output in LOADS[load]:
        timeline.advance(arrival_s)
        leg = Leg(costs.prompt_s(0, prompt), output - 1, prompt, arrival_s)
        timeline.add(leg)
        predicted.append(timeline.end_s(leg))
    count = len(predicted)
    for index in {0, count // 2, count - 1}:
        arrival_s = LOADS[load][index][0]
        end_s = simulated_end_s(config, deployment, LOADS[load][: index + 1], At())
        assert predicted[index] - arrival_s == pytest.approx(end_s - arrival_s, rel=TOLERANCE, abs=0.1)
    assert timeline.finish_s >= predicted[-1] - 1e-9


@pytest.mark.parametrize("split", [700, 1000, 1200])
def test_both_parts_of_a_split_request_end_when_the_simulator_says(split: int) -> None:
    """The second part begins when the first has ended, and its KV cache is there."""
    config, deployment = built(*PROFILES[0])
    costs, prompt, output = PassCosts(deployment), 1000, 400
    first, second, count = Timeline(costs), Timeline(costs), 12
    for _ in range(count):
        inside, decoded = min(split, prompt), max(split - prompt, 0)
        ahead = Leg(costs.prompt_s(0, inside), decoded, inside, 0.0)
        first.add(ahead)
        ready_s = first.end_s(ahead) + deployment.perf.transfer_s(0)
        behind = Leg(costs.prompt_s(inside, prompt), output - 1 - decoded, max(split, prompt), ready_s)
        second.add(behind)
    end_s = simulated_end_s(config, deployment, [(0.0, prompt, output)] * count, At(split))
    assert second.end_s(behind) == pytest.approx(end_s, rel=TOLERANCE)


def test_a_decode_that_joins_others_takes_as_many_passes_as_tokens(deployment: Deployment) -> None:
    """One token in each pass: 1,000 tokens take the time of 1,000 passes, not a share of them."""
    costs, alone, beside = PassCosts(deployment), Timeline(PassCosts(deployment)), Timeline(PassCosts(deployment))
    one = Leg(0.0, 1000, 500, 0.0)
    alone.add(one)
    assert alone.end_s(one) == pytest.approx(sum(costs.decode_s(1, 500 + k) for k in range(1000)), rel=0.01)
    for _ in range(49):
        beside.add(Leg(0.0, 1000, 500, 0.0))
    last = Leg(0.0, 1000, 500, 0.0)
    beside.add(last)
    assert beside.end_s(last) == pytest.approx(sum(costs.decode_s(50, 50 * (500 + k)) for k in range(1000)), rel=0.01)


def test_time_that_passes_changes_no_prediction(deployment: Deployment) -> None:
    costs = PassCosts(deployment)
    timeline, legs = Timeline(costs), []
    for index in range(10):
        leg = Leg(costs.prompt_s(0, 2000), 100 + 50 * index, 2000, 0.0)
        timeline.add(leg)
        legs.append(leg)
    before = timeline.finish_s
    for step in range(1, 40):
        timeline.advance(step * 0.05)
    assert timeline.batch > 0
    timeline.add(Leg(0.0, 1, 1, 2.0))
    assert timeline.finish_s == pytest.approx(before, rel=0.02)
    timeline.advance(before + 1)
    assert timeline.batch == 0
    assert timeline.kv_tokens == pytest.approx(0, abs=1e-6)
    assert timeline.finish_s == before + 1


def to_come() -> list[Leg]:
    """Return decodes that other workers prefill, in the order in which they will arrive."""
    return [Leg(0.0, 2000, 1000, 1.0 + index) for index in range(6)]


def test_decodes_that_arrive_later_are_there_however_often_time_goes_on(deployment: Deployment) -> None:
    once, often = Timeline(PassCosts(deployment)), Timeline(PassCosts(deployment))
    for timeline in (once, often):
        for leg in to_come():
            timeline.add(leg)
    once.advance(10.0)
    for step in range(1, 21):
        often.advance(0.5 * step)
    assert once.batch == often.batch == len(to_come())
    assert once.kv_tokens == often.kv_tokens
    assert often.finish_s == pytest.approx(once.finish_s)


@pytest.mark.parametrize("adds", [False, True])
def test_a_prompt_that_arrives_later_waits_until_it_is_done(deployment: Deployment, adds: bool) -> None:
    """It shares its passes with decodes, some of which end before it. Work that is added plays the passes again."""
    timeline = Timeline(PassCosts(deployment))
    for index in range(40):
        timeline.add(Leg(0.0, 40 + 2 * index, 1000, 0.0))
    timeline.add(Leg(3.0, 500, 4000, 1.0))
    for step in range(1, 121):
        timeline.advance(0.05 * step)
        if adds and step == 10:
            timeline.add(Leg(0.0, 1, 1000, 0.5))
    assert timeline.batch == 1
    assert timeline.kv_tokens == 4000 + 500
    assert timeline.finish_s > 4.0 + 500 * PassCosts(deployment).decode_s(1, 4000)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("now_s", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_changes_nothing(deployment: Deployment, now_s: float) -> None:
    """Once its clock was NaN, the prompts that wait had no end."""
    timeline = Timeline(PassCosts(deployment))
    for _ in range(3):
        timeline.add(Leg(0.1, 10, 1000, 0.0))
    before = timeline.finish_s
    timeline.advance(now_s)
    assert timeline.finish_s == before
    timeline.correct(None, 100.0, Leg(0.0, 100, 1000, 0.0))
    timeline.advance(1.0)
    assert before < timeline.finish_s < math.inf


def test_a_probe_is_what_an_addition_would_be(deployment: Deployment) -> None:
    """Line 6 of Algorithm 1 in constant time, against playing all passes again."""
    costs = PassCosts(deployment)
    for others, tokens in ((0, 300), (5, 300), (5, 3000), (40, 300)):
        timeline = Timeline(costs)
        for index in range(others):
            timeline.add(Leg(costs.prompt_s(0, 500), 200 + 10 * index, 500, 0.0))
        leg = Leg(costs.prompt_s(0, 1000), tokens, 1000, 0.0)
        probed_s = timeline.finish_with_s(leg)
        timeline.add(leg)
        assert probed_s == pytest.approx(timeline.finish_s, rel=0.1)


def test_a_longer_queue_than_predicted_delays_a_prompt(deployment: Deployment) -> None:
    timeline, unknown = Timeline(PassCosts(deployment)), Leg(0.0, 100, 1000, 0.0)
    timeline.advance(1.0)
    free_s = timeline.done_s(0.1, 1.0)
    timeline.correct(5.0, None, unknown)
    assert timeline.done_s(0.1, 1.0) >= free_s + 5.0
    timeline.correct(0.0, None, unknown)
    assert timeline.done_s(0.1, 1.0) == free_s


@pytest.mark.parametrize("reported", [0.0, 20.0, 200.0, 1e9])
def test_decodes_follow_the_report(deployment: Deployment, reported: float) -> None:
    """Answers end earlier and later than predicted. Nothing grows beyond the largest batch."""
    timeline, unknown = Timeline(PassCosts(deployment)), Leg(0.0, 100, 1000, 0.0)
    for _ in range(50):
        timeline.add(Leg(0.0, 500, 1000, 0.0))
    timeline.correct(None, reported, unknown)
    assert timeline.batch == min(reported, deployment.max_batch)
    timeline.advance(1e6)
    assert timeline.batch == 0
    assert timeline.kv_tokens == pytest.approx(0, abs=1e-3)


def test_prompts_wait_where_the_kv_cache_is_full() -> None:
    """The hardware limits of the runtime hold for virtual batches too."""
    ends = []
    for kv_tokens in (200_000, 3_000):
        costs = PassCosts(deployment_of(Model(kv_tokens)))
        timeline = Timeline(costs)
        for _ in range(4):
            leg = Leg(costs.prompt_s(0, 1000), 400, 1000, 0.0)
            timeline.add(leg)
        ends.append(timeline.end_s(leg))
    assert ends[1] > 1.5 * ends[0]


def test_a_prompt_token_is_dearer_where_few_fit_beside_decodes() -> None:
    """A step of 50 ms leaves few tokens beside thirty decodes, and one of 100 ms many."""

    def more(tpot_s: float, decodes: int) -> float:
        config = parse({"slo": {"tpot_s": tpot_s}, "deployment": {"profile": "h100/llama-3.1-70b-fp8"}})
        costs = PassCosts(build_deployment(config))
        return costs.dearer_s(decodes, 1000.0 * decodes) / costs.prompt_s(0, 1)

    assert more(0.05, 30) > 0.5
    assert more(0.1, 30) == 0.0
    assert more(0.05, 0) == 0.0
