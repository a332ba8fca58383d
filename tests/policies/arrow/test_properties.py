"""The safety rules, whatever the cluster reports: DESIGN's section 7 and the paper's Section 5.5."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins.policies.arrow.instance import PoolName
from pdplugins.policies.arrow.pools import TRANSITIONS, Pools
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.testing import Worker
from pdplugins.types import Role
from tests.policies.arrow.cluster import Cluster

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


@pytest.mark.moderate
@settings(max_examples=60)
@given(
    clusters.filter(lambda shape: sum(shape) > 1),
    st.integers(1, 20_000),
    st.floats(0.01, 1.0),
    st.lists(st.tuples(st.integers(0, 256), st.integers(0, 400_000)), min_size=8, max_size=8),
    st.one_of(st.none(), st.floats(0, 0.1)),
)
def test_no_oscillation_at_constant_load(
    shape: tuple[int, int], tokens: int, gap_s: float, decoding: list[tuple[int, int]], tbt_s: float | None
) -> None:
    """Equal prompts at equal times over decodes that never end: after a while no instance changes sides any more."""
    c = Cluster(*shape)
    for worker, (requests, running) in zip(c.workers, decoding, strict=False):
        c.decoding(worker.id, requests, running)
        worker.load.recent_tbt_s = tbt_s
    flips = []
    for _ in range(150):
        c.clock_s += gap_s
        c.arrive(tokens)
        flips.append(c.router.signals["flips_to_prefill"] + c.router.signals["flips_to_decode"])
    assert flips[-1] == flips[100]
