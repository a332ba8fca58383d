"""Parts of a traffic stand for it, and other draws are of the same kind."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, TraceError
from pdplugins.studies.advise import traffic
from pdplugins.types import TraceRequest
from pdplugins.workloads import jsonl
from pdplugins.workloads.transform import Transform

NOTHING = Transform.of()


def drifting(minutes: int = 20) -> list[TraceRequest]:
    """Minute m has m + 1 requests, whose prompts say the minute."""
    return [TraceRequest(60.0 * m + 60.0 * k / (m + 1), 100 + m, 10) for m in range(minutes) for k in range(m + 1)]


def test_a_part_is_cut_from_the_whole_length() -> None:
    requests = drifting(40)
    part = traffic.part_of(requests, 80)
    assert len(part) == 80
    assert [b.arrival_s >= a.arrival_s for a, b in pairwise(part)].count(False) == 0
    minutes = Counter(one.isl_tokens - 100 for one in part)
    assert min(minutes) < 18
    assert max(minutes) > 36
    assert traffic.part_of(requests, len(requests)) is requests


def test_a_part_has_the_rate_of_where_it_is_from() -> None:
    requests = [TraceRequest(index / 5, 100, 10) for index in range(4000)]
    part = traffic.part_of(requests, 400)
    assert len(part) / part[-1].arrival_s == pytest.approx(5, rel=0.01)


def test_another_draw_of_a_trace_drifts_as_it_does() -> None:
    requests = drifting()
    one, other = traffic.shuffled(requests, 1), traffic.shuffled(requests, 2)
    assert one == traffic.shuffled(requests, 1)
    assert one != other
    for request in one:
        from_minute = request.isl_tokens - 100
        assert abs(request.arrival_s / 60 - from_minute) < traffic.REACH + 2


def test_sessions_of_a_block_that_is_drawn_twice_stay_apart() -> None:
    requests = [TraceRequest(10.0 * k, 100, 10, session=f"s{k}") for k in range(100)]
    sessions = Counter(one.session for one in traffic.shuffled(requests, 3))
    assert max(sessions.values()) == 1


def test_lengths_and_rate_are_those_that_were_given() -> None:
    made = traffic.lengths(1000, 100, Transform.of(rate=4.0), seed=0)
    count = len(made.requests)
    assert made.rate == pytest.approx(4, rel=0.05)
    assert sum(one.isl_tokens for one in made.requests) / count == pytest.approx(1000, rel=0.05)
    assert sum(one.osl_tokens for one in made.requests) / count == pytest.approx(100, rel=0.05)
    assert made.draw(1) != made.requests


@pytest.mark.parametrize("rate", [0.001, 0.0007, 0.0003])
def test_few_requests_are_drawn_for_longer(rate: float) -> None:
    """An hour of the first ones has none in one of forty draws."""
    made = traffic.lengths(1000, 100, Transform.of(rate=rate), seed=0)
    assert all(1 <= len(made.draw(number)) <= 30 for number in range(100))


@pytest.mark.parametrize(("rate", "clip_s"), [(1e-4, None), (0.5, 10.0)])
def test_too_few_requests_to_judge_by_are_refused(rate: float, clip_s: float | None) -> None:
    with pytest.raises(ConfigError, match=f"--rate {rate:g} is .* requests in .* s, and 10 are the fewest"):
        traffic.lengths(1000, 100, Transform.of(rate=rate, clip_s=clip_s), seed=0)


def test_a_workload_is_drawn_with_other_seeds_a_file_from_its_own_minutes(tmp_path: Path) -> None:
    workload = traffic.named("synthetic:duration_s=60", NOTHING)
    assert workload.how == "seeds of the workload"
    assert workload.draw(1) != workload.draw(2)
    path = tmp_path / "mine.jsonl"
    jsonl.write(drifting(5), path)
    assert traffic.named(str(path), NOTHING).how == "draws of the trace's own minutes"


@pytest.mark.parametrize("duration_s", [0.5, 55.0, 90.0])
def test_draws_of_a_short_trace_differ(duration_s: float) -> None:
    """One block of a minute would be the same in each draw, and its interval have no width."""
    requests = [TraceRequest(duration_s * index / 99, 100 + index, 10) for index in range(100)]
    draws = [traffic.shuffled(requests, number) for number in range(5)]
    assert len({tuple(one.isl_tokens for one in draw) for draw in draws}) == 5
    assert all(draw[-1].arrival_s <= 1.1 * duration_s for draw in draws)
    at_once = [TraceRequest(0.0, 100, 10)] * 3
    assert traffic.shuffled(at_once, 1) == at_once


def test_what_is_no_traffic_is_refused() -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv"):
        traffic.named("nowhere.csv", NOTHING)


@pytest.mark.parametrize(("name", "repeats"), [("sessions", True), ("synthetic:duration_s=20", False)])
def test_whether_prompts_repeat_is_seen(name: str, repeats: bool) -> None:
    assert traffic.named(name, Transform.of(max_requests=20)).repeats is repeats
