"""The safety rules, whatever the cluster reports: DESIGN's section 7 and the paper's Section 5.5."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.instance import PoolName
from pdplugins.policies.arrow.pools import TRANSITIONS, Pools
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.simulation import Simulation
from pdplugins.testing import LinearModel, Worker, deployment
from pdplugins.types import Role
from tests.policies.arrow.cluster import Cluster
from tests.policies.arrow.settled import undone

numbers = st.one_of(st.floats(), st.floats(0, 1e6), st.integers(0, 300).map(float))
loads = st.tuples(numbers, numbers, numbers, numbers, st.one_of(st.none(), st.floats(), st.floats(0, 0.2)))
steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "prefilled", "prefilled", "load", "leave", "join"]),
        st.integers(0, 10**6),
        st.floats(0, 2),
        loads,
    ),
    max_size=60,
)
clusters = st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(any)


def play(shape: tuple[int, int], moves: list[tuple[str, int, float, Any]]) -> tuple[Cluster, list[str]]:
    """Run a cluster through anything that can happen to it; check after every call that both phases are served."""
    c = Cluster(*shape)
    log: list[str] = []
    for what, number, gap_s, load in moves:
        c.clock_s += gap_s
        if what == "arrive":
            placed = c.arrive(number)
            assert placed.first in {w.id for w in c.workers}
            assert placed.second is None
        elif what == "prefilled" and c.open:
            placed = c.prefilled(list(c.open)[number % len(c.open)])
            assert placed.second in {w.id for w in c.workers}
        elif what == "load":
            state = c.workers[number % len(c.workers)].load
            state.queued_requests, state.queued_tokens, state.running_requests, state.running_tokens, _ = load
            state.recent_tbt_s = load[4]
            continue
        elif what == "leave" and len(c.workers) > 1:
            c.workers = tuple(w for i, w in enumerate(c.workers) if i != number % len(c.workers))
            continue
        elif what == "join" and len(c.workers) < 8:
            c.workers = (*c.workers, Worker(f"n{c.count}{len(log)}", list(Role)[number % 2]))
            log.append("join")
            continue
        else:
            continue
        check(c)
        log.append(repr(placed))
    return c, log


def check(c: Cluster) -> None:
    pools = c.router.pools
    assert sum(pools) == len(c.workers)
    assert len(c.workers) == 1 or min(pools) >= 1, "a phase without an instance"
    by_pool = [instance for name in PoolName for instance in c.router._pools[name]]
    assert sorted(i.view.id for i in by_pool) == sorted(w.id for w in c.workers), "each in exactly one pool"
    for instance in by_pool:
        assert instance.backlog_s >= -1e-9
        assert instance in c.router._pools[instance.pool]


@given(clusters, steps)
def test_both_phases_are_served_whatever_happens(
    shape: tuple[int, int], moves: list[tuple[str, int, float, Any]]
) -> None:
    """NaN loads, workers that come and go, prompts beyond any KV cache, overload of everything, one worker."""
    c, _ = play(shape, moves)
    for instance in c.router._instances.values():
        assert len(instance.prefills) <= c.count


@given(clusters, steps)
def test_the_same_observations_give_the_same_decisions(
    shape: tuple[int, int], moves: list[tuple[str, int, float, Any]]
) -> None:
    assert play(shape, moves)[1] == play(shape, moves)[1]


@given(clusters, steps)
def test_no_other_transition_than_those_of_figure_5(
    shape: tuple[int, int], moves: list[tuple[str, int, float, Any]]
) -> None:
    class Watched(Pools):
        def move(self, instance: Any, to: PoolName) -> None:
            assert to in TRANSITIONS[instance.pool]
            super().move(instance, to)

    original = ArrowRouter.__init__

    def init(self: ArrowRouter, *arguments: Any) -> None:
        original(self, *arguments)
        self._pools = self._monitor._pools = Watched()

    ArrowRouter.__init__ = init  # type: ignore[method-assign]
    try:
        play(shape, moves)
    finally:
        ArrowRouter.__init__ = original  # type: ignore[method-assign]


MODEL = LinearModel(
    prefill_fixed_s=1e-3, prefill_token_s=1e-4, decode_fixed_s=5e-3, decode_request_s=5e-5, decode_token_s=5e-8,
    transfer_fixed_s=1e-3, kv_tokens=400_000,
)  # fmt: skip
"""A request slows a decode step by itself, as on a GPU. So a large batch says little about one of long contexts."""


def most_rate(workers: int, tokens: int, answer: int, tpot_s: float) -> float:
    """Return the equal requests a second that the best split serves: no queue in either phase, TPOT at its SLO."""
    context = tokens + answer / 2
    batch = min((tpot_s - 5e-3) / (5e-5 + 5e-8 * context), 400_000 / context, 256)
    decode_s = answer * MODEL.decode_step_s(batch, context, 1) / batch
    return max(min(p / MODEL.prefill_s(tokens, 1), (workers - p) / decode_s) for p in range(1, workers))


@pytest.mark.moderate
@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1500, 6000),
    st.integers(20, 150),
    st.sampled_from([0.008, 0.012, 0.05]),
    st.floats(0.1, 0.75),
    st.integers(0, 10**6),
)
def test_no_oscillation_at_constant_load(
    shape: tuple[int, int], tokens: int, answer: int, tpot_s: float, share: float, seed: int
) -> None:
    """Equal requests at random times, in a closed loop with the shipped thresholds: no change is undone in the end.

    Prefills end, decodes end, and what the router sees is what its placements led to.
    """
    rate = share * most_rate(sum(shape), tokens, answer, tpot_s)
    lasts_s = answer * 0.05 + 2
    random = Random(seed)
    gaps_s = [random.expovariate(rate) for _ in range(int(rate * 6 * lasts_s) + 1)]
    served = deployment(MODEL, ttft_s=2.0, tpot_s=tpot_s, startup_s=0.0)
    start = SimSettings(*shape, engine=EngineSettings(step_tokens=2048), flip="label")
    simulation = Simulation(served, start, ArrowRouter(ArrowSettings(), served))
    outcome = simulation.run(Arrival(at_s, tokens, answer) for at_s in accumulate(gaps_s))
    assert undone(outcome.scaling, 3 * lasts_s, sum(gaps_s)) == 0
