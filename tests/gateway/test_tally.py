"""A counter that takes no lock shows what Prometheus's own would show."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest

from pdplugins.gateway.tally import Tally


def test_it_shows_what_prometheus_counter_shows() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    plain, labelled = Tally("a", "A text", ours), Tally("b", "B text", ours, "of")
    counters = Counter("a", "A text", registry=theirs), Counter("b", "B text", ["of"], registry=theirs)
    for count in (1, 3):
        plain.add(count)
        counters[0].inc(count)
        labelled.add(count, 'x"\n')
        counters[1].labels('x"\n').inc(count)
    labelled.add(1, "y")
    counters[1].labels("y").inc()
    assert _lines(ours) == _lines(theirs)
    assert (plain.count(), labelled.count("y"), labelled.count("z")) == (4, 1, 0)


def _lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
