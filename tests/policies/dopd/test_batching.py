"""DOPD's Algorithm 1: long prompts at once, short ones together, none behind long ones for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdplugins import testing
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.dopd.batching import DopdBatching, Moments, kingman_wait_s
from pdplugins.policies.dopd.config import DopdBatchSettings
from pdplugins.resources import data_dir
from pdplugins.types import BatchView, QueuedPrefill, Request

PERF = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))
DEPLOYMENT = testing.deployment(PERF, gpu_budget=16, decode_tp=2)


def scheduler(**changed: object) -> DopdBatching:
    return DopdBatching(DopdBatchSettings(**changed), DEPLOYMENT)  # type: ignore[arg-type]


def queue(*lengths: int, queued_s: float = 0.0, first: int = 0) -> tuple[QueuedPrefill, ...]:
    requests = (Request(str(first + index), queued_s, tokens) for index, tokens in enumerate(lengths))
    return tuple(QueuedPrefill(request, request.prompt_tokens, queued_s) for request in requests)


def batch(subject: DopdBatching, waiting: tuple[QueuedPrefill, ...], now_s: float = 0.0) -> list[str]:
    return list(subject.next_batch(BatchView(waiting, 0, 0), now_s).prefill_tokens)


def test_short_prompts_gather_until_they_reach_the_threshold() -> None:
    assert batch(scheduler(threshold_tokens=1000), queue(400, 400, 400, 400)) == ["0", "1", "2"]


def test_an_empty_queue_ends_the_gathering() -> None:
    assert batch(scheduler(threshold_tokens=1000), queue(100, 200)) == ["0", "1"]
    assert batch(scheduler(threshold_tokens=1000), ()) == []


def test_a_long_prompt_runs_alone_and_ahead_of_the_short_ones_that_gather() -> None:
    assert batch(scheduler(threshold_tokens=1000), queue(100, 1000, 100)) == ["1"]


def test_the_timeout_ends_the_overtaking() -> None:
    subject = scheduler(threshold_tokens=1000)
    short, now_s = queue(100, 200), 0.0
    for turn in range(1000):
        chosen = batch(subject, short + queue(8000, queued_s=now_s, first=2 + turn), now_s)
        if chosen == ["0", "1"]:
            break
        now_s += PERF.prefill_s(8000, 1)
    assert turn > 0
    assert now_s <= DEPLOYMENT.slo.ttft_s + PERF.prefill_s(8000, 1)


def test_the_threshold_is_the_forecast_isl() -> None:
    subject = scheduler(interval_s=1.0)
    for second in range(60):
        batch(subject, queue(500, 1500, queued_s=second + 0.5), second + 0.5)
    assert batch(subject, queue(990, queued_s=60.0) + queue(1200, queued_s=60.1, first=1), 60.2) == ["1"]
    assert batch(subject, queue(400, 700, 400, queued_s=61.0), 61.0) == ["0", "1"]


def test_a_step_of_short_prompts_is_an_efficient_one() -> None:
    """One with 60 tokens takes nearly as long as one with 600: nine more prompts cost next to nothing."""
    subject = scheduler()
    for second in range(60):
        batch(subject, queue(*[60] * 8, queued_s=second + 0.5), second + 0.5)
    tokens = 60 * len(batch(subject, queue(*[60] * 100, queued_s=70.0), 70.0))
    assert tokens >= 256
    assert PERF.prefill_s(tokens, 1) / tokens < 1.1 * PERF.prefill_s(8192, 1) / 8192


def test_kingman_is_the_mean_wait_of_an_m_m_1_queue() -> None:
    """For exponential gaps and services W_q = rho / (1 - rho) E[S] (Eq. 10 with c_a^2 = c_s^2 = 1)."""
    service, gap = Moments(100, mean=0.5, square=0.5), Moments(100, mean=1.0, square=2.0)
    assert kingman_wait_s(service, gap) == pytest.approx(0.5)
    assert kingman_wait_s(Moments(100, 1.0, 1.0), Moments(100, 0.5, 1.0)) == math.inf


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 3)), min_size=1, max_size=40), st.booleans())
def test_every_prompt_runs_whole_and_once_and_the_queue_always_drains(
    arrivals: list[tuple[int, int]], fixed: bool
) -> None:
    subject = scheduler(threshold_tokens=1000 if fixed else None)
    waiting: dict[str, QueuedPrefill] = {}
    done: list[str] = []
    now_s = 0.0
    for index, (tokens, steps) in enumerate(arrivals):
        waiting[str(index)] = QueuedPrefill(Request(str(index), now_s, tokens), tokens, now_s)
        last = index == len(arrivals) - 1
        for _ in range(len(arrivals) + 1 if last else steps):
            plan = subject.next_batch(BatchView(tuple(waiting.values()), 3, 100), now_s)
            assert bool(plan.prefill_tokens) == bool(waiting), "it never idles while prompts wait"
            for name, count in plan.prefill_tokens.items():
                assert waiting.pop(name).remaining_tokens == count
                done.append(name)
            now_s += 0.1
    assert sorted(done, key=int) == [str(index) for index in range(len(arrivals))]
