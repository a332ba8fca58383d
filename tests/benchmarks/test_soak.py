"""The judge of the soak finds growth and losses, and takes neither noise nor what was on a killed worker for one."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import soak

SECONDS = 1800.0
HELD = {"rss_mib": 90.0, "files": 40.0, "threads": 6.0, "tasks": 12.0}


def samples(slope_mib_per_h: float, noise_mib: float = 2.0) -> list[dict[str, Any]]:
    """A process that begins with 60 MiB, grows quickly while it warms up, and then by so much."""
    dice = random.Random(0)
    times = [soak.SAMPLE_S * index for index in range(int(SECONDS / soak.SAMPLE_S))]
    grown = [60 + min(at_s / 10, 30) + slope_mib_per_h * at_s / 3600 + dice.gauss(0, noise_mib) for at_s in times]
    return [{"at_s": at_s, "process": "router", "rss_mib": size} for at_s, size in zip(times, grown, strict=True)]


@pytest.mark.parametrize(("slope", "grows"), [(0.0, False), (10.0, False), (80.0, True), (-80.0, False)])
def test_memory_that_grows_after_the_warm_up_is_found(slope: float, grows: bool) -> None:
    found = soak.memory(samples(slope), "router", SECONDS)
    assert found["grows"] is grows
    assert found["low"] <= found["slope_mib_per_h"] <= found["high"]
    assert found["slope_mib_per_h"] == pytest.approx(slope, abs=3.0)


def quiet_moments(of: str, counts: list[float]) -> list[dict[str, dict[str, float]]]:
    """Two moments with little, within the warm-up, and then what is held of one thing."""
    warm = {"router": {**HELD, "files": 10.0, "tasks": 1.0}}
    return [warm, warm, *({"router": {**HELD, of: count}} for count in counts)]


@pytest.mark.parametrize(("of", "more", "grows"), [("files", 4, False), ("files", 30, True), ("tasks", 30, True)])
def test_what_is_held_without_requests_may_not_grow(of: str, more: int, grows: bool) -> None:
    counts = [HELD[of] + more * step / 4 for step in range(5)]
    found = {row["of"]: row for row in soak.held(quiet_moments(of, counts))}
    assert set(found) == set(soak.SPARE)
    assert found[of]["grows"] is grows
    assert found[of]["first"] == HELD[of], "the first moment after the warm-up counts"


@pytest.mark.parametrize("counts", [[40.0, 52.0, 40.0, 41.0, 54.0], [40.0, 40.0, 40.0, 70.0]])
def test_what_swings_with_the_pools_is_no_growth(counts: list[float]) -> None:
    assert not any(row["grows"] for row in soak.held(quiet_moments("files", counts)))
    assert not any(row["grows"] for row in soak.held(quiet_moments("files", counts)[-1:]))


def test_a_request_is_lost_where_it_fails_away_from_a_kill() -> None:
    failures = [(100.0, "before"), (105.0, "at the kill"), (104.0 + soak.AT_A_KILL_S + 1, "later")]
    clients = SimpleNamespace(came=Counter(served=10, failed=3), failures=failures)
    found = soak.requests(clients, [soak.Kill(104.0, "prefill-1")])
    assert (found["sent"], found["served"], found["failed_at_a_kill"], found["lost"]) == (13, 10, 1, 2)
    assert found["said"] == ["inf s after a kill: before", "11 s after a kill: later"]
