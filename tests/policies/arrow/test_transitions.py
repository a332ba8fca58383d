"""Every transition of Figure 5 is taken by a decision of the scheduler, in the situation that the paper describes."""

from __future__ import annotations

from collections.abc import Callable

from pdplugins.policies.arrow.pools import Pools
from tests.policies.arrow.cluster import Cluster

LONG = 9000  # tokens that prefill in 0.98 s; the TTFT SLO is 1 s

Make = Callable[..., Cluster]


def test_an_idle_decode_instance_becomes_prefill_at_once(cluster: Make) -> None:
    c = cluster(1, 2)
    c.arrive(LONG)
    assert c.arrive(LONG).first == "d1"
    assert c.pool("d1") == "P"


def test_a_busy_decode_instance_becomes_d_to_p_and_then_p(cluster: Make) -> None:
    c = cluster(1, 2)
    c.decoding("d1", 2, 1000)
    c.decoding("d2", 3, 2000)
    c.arrive(LONG)
    placed = c.arrive(LONG)
    assert (placed.first, c.pool("d1")) == ("d1", "D->P")
    assert "d1 moved to D->P" in placed.reason
    c.decoding("d1", 0, 0)
    c.clock_s = 0.1
    c.arrive(10)
    assert c.pool("d1") == "P"


def full(c: Cluster, *workers: str) -> None:
    for worker in workers:
        c.decoding(worker, 200, 400_000)


def test_an_idle_prefill_instance_becomes_decode_at_once(cluster: Make) -> None:
    c = cluster(2, 1, busy_load=9.0, slow_s=0.0)
    full(c, "d2")
    c.arrive(100)
    assert c.prefilled("0").second == "p0"
    assert c.pool("p0") == "D"


def test_a_busy_prefill_instance_becomes_p_to_d_and_then_d(cluster: Make) -> None:
    c = cluster(2, 1, busy_load=9.0, slow_s=0.0)
    for tokens in (100, 4000, 4000, 4000):
        c.arrive(tokens)
    full(c, "d2")
    assert c.pool("p0") == "P"
    placed = c.prefilled("0")
    moved = placed.second
    assert moved is not None
    assert c.pool(moved) == "P->D"
    for name in [n for n, (_, p) in c.open.items() if p.first == moved]:
        assert c.prefilled(name).second == moved, "what prefills there decodes there: no KV cache moves"
    assert c.pool(moved) == "D"


def with_p_to_d(cluster: Make) -> tuple[Cluster, str]:
    """Return a cluster with one instance in P->D and one in P, whose decode load is low again."""
    c = cluster(2, 1, busy_load=9.0, slow_s=0.0)
    for tokens in (LONG, LONG, LONG):
        c.arrive(tokens)
    full(c, "d2")
    moved = c.prefilled("0").second
    assert moved is not None
    assert c.pool(moved) == "P->D"
    c.decoding("d2", 0, 0)
    c.clock_s = 0.01
    return c, moved


def test_an_instance_that_was_to_decode_goes_back_to_prefill(cluster: Make) -> None:
    """Algorithm 3 takes P->D instances first: without decode requests so far they are P, else D->P."""
    c, moved = with_p_to_d(cluster)
    c.decoding(moved, 2, 10_000)  # its prefill and the decode that it was given
    assert c.arrive(LONG).first == moved
    assert c.pool(moved) == "D->P"
    c, moved = with_p_to_d(cluster)
    c.decoding(moved, 1, 9000)
    c.finished("0")
    assert c.arrive(LONG).first == moved
    assert c.pool(moved) == "P"


def with_d_to_p(cluster: Make) -> Cluster:
    c = cluster(1, 2, busy_load=9.0, slow_s=0.0)
    c.decoding("d1", 2, 1000)
    c.decoding("d2", 3, 2000)
    c.arrive(LONG)
    c.arrive(LONG)
    assert c.pool("d1") == "D->P"
    return c


def test_an_instance_that_was_to_prefill_goes_back_to_decode(cluster: Make) -> None:
    """Algorithm 4 takes D->P instances first: with prefill requests so far they are P->D, else D."""
    c = with_d_to_p(cluster)
    full(c, "d2")
    assert c.prefilled("0").second == "d1"
    assert c.pool("d1") == "P->D"
    c = with_d_to_p(cluster)
    full(c, "d2")
    c.clock_s = 0.5
    assert c.prefilled("1").second == "d1"
    assert c.pool("d1") == "D"


def test_the_moves_above_are_all_edges(cluster: Make, monkeypatch: object) -> None:
    """The tests of this file take every edge of Figure 5."""
    taken = set()
    original = Pools.move

    def note(self: Pools, instance: object, to: object) -> None:
        taken.add((instance.pool, to))  # type: ignore[attr-defined]
        original(self, instance, to)  # type: ignore[arg-type]

    monkeypatch.setattr(Pools, "move", note)  # type: ignore[attr-defined]
    for name, test in list(globals().items()):
        if name.startswith("test_an_") or name.startswith("test_a_"):
            test(cluster)
    assert len(taken) == 10
