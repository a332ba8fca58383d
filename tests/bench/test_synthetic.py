"""The synthetic workload: seeded, bursty, of the length and the lengths that were asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean, median, variance

from pdplugins.bench import traces
from pdplugins.bench.synthetic import SyntheticSettings, synthetic


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert list(synthetic(SyntheticSettings())) == list(synthetic(SyntheticSettings()))
    assert list(synthetic(SyntheticSettings())) != list(synthetic(SyntheticSettings(seed=1)))


def test_traffic_is_burstier_than_poisson() -> None:
    made = list(synthetic(SyntheticSettings(duration_s=2000)))
    counts = Counter(int(r.arrival_s // 10) for r in made)
    per_window = [counts[window] for window in range(200)]
    assert variance(per_window) > 5 * mean(per_window)


def test_rate_length_and_duration_are_what_was_asked_for() -> None:
    made = list(synthetic(SyntheticSettings(duration_s=3000, rate=5, burst_rate=5, isl_tokens=800, osl_tokens=50)))
    assert 0.9 < len(made) / 3000 / 5 < 1.1
    assert 0.9 < median(r.isl_tokens for r in made) / 800 < 1.1
    assert 0.9 < median(r.osl_tokens for r in made) / 50 < 1.1
    assert all(0 < r.arrival_s < 3000 for r in made)


def test_it_needs_no_file() -> None:
    assert len(traces.read(Path("synthetic"))) > 100
