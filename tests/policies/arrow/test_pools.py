"""The elastic pools: the order inside a pool, and the totals over the decode pools."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.arrow.instance import Instance, PoolName
from pdplugins.policies.arrow.limits import DecodeLimits
from pdplugins.policies.arrow.pools import TRANSITIONS, DecodeLoad, Least, Pools
from pdplugins.policies.arrow.startup import TtftPredictor

LIMITS = DecodeLimits(10, 2000, 2000.0, empty_step_s=0.01, token_s=1e-5)
"""The KV cache of 1000 tokens is full before."""


class View:
    id = "w"
    kv_capacity_tokens = 1000


def instance(serial: int, pool: PoolName = PoolName.D) -> Instance:
    return Instance(View(), serial, pool, TtftPredictor(0, 1, 0), LIMITS)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 9))), max_size=200))
def test_the_first_of_a_pool_has_the_least_key(changes: list[tuple[int, int | None]]) -> None:
    """Whatever is put, changed and discarded; and what is replaced does not pile up."""
    known = [instance(serial) for serial in range(6)]
    pool, keys = Least(), dict[int, int]()
    for index, key in changes:
        if key is None:
            pool.discard(known[index])
            keys.pop(index, None)
        else:
            pool.put(known[index], key)
            keys[index] = key
        first = pool.first()
        expected = min(keys, key=lambda i: (keys[i], i), default=None)
        assert (None if first is None else first.serial) == expected
        assert len(pool) == len(keys)
        assert len(pool._heap) <= 4 * 6 + 17


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(PoolName, 2)))
def test_only_the_edges_of_figure_5_can_be_taken(one: PoolName, other: PoolName) -> None:
    pools = Pools()
    moved = instance(1, one)
    pools.add(moved)
    if other in TRANSITIONS[one]:
        pools.move(moved, other)
        assert moved.pool is other
        assert (len(pools[one]), len(pools[other])) == (0, 1)
    else:
        with pytest.raises(ValueError, match="Figure 5"):
            pools.move(moved, other)


def test_figure_5_has_ten_edges() -> None:
    """A P instance decodes nothing, so it never becomes D->P; nor does a D instance ever become P->D."""
    missing = {(a, b) for a, b in itertools.permutations(PoolName, 2) if b not in TRANSITIONS[a]}
    assert missing == {(PoolName.P, PoolName.DP), (PoolName.D, PoolName.PD)}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans(), st.sampled_from([None, 0.0, 0.5]))))
def test_totals_are_those_of_the_instances(steps: list[tuple[int, int, bool, float | None]]) -> None:
    known = [instance(serial, PoolName.PD if serial == 3 else PoolName.D) for serial in range(4)]
    load, inside = DecodeLoad(), set[int]()
    for index, tokens, keep, interval_s in steps:
        changed = known[index]
        changed.tokens, changed.interval_s = tokens, interval_s
        (load.count if keep else load.drop)(changed)
        (inside.add if keep else inside.discard)(index)
        full = LIMITS.speed(1000) * len(inside)
        assert load.share == pytest.approx(sum(LIMITS.speed(known[i].tokens) for i in inside) / max(full, 1e-9))
        told = [known[i].interval_s for i in inside if known[i].pool is PoolName.D and known[i].interval_s is not None]
        assert load.interval_s == pytest.approx(sum(told) / len(told) if told else 0.0, abs=1e-9)


def test_intervals_of_instances_that_still_prefill_do_not_count() -> None:
    """Section 5.5 averages decode instances. A step of a P->D instance has a chunk of prefill, and says nothing."""
    pools = Pools()
    decodes, both = instance(1), instance(2, PoolName.PD)
    decodes.interval_s, both.interval_s = 0.01, 0.3
    pools.add(decodes)
    pools.add(both)
    assert pools.load.interval_s == pytest.approx(0.01)
    pools.move(both, PoolName.D)
    assert pools.load.interval_s == pytest.approx(0.155)
