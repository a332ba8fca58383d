"""What clients feel, from the frontend's histograms."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from unittest import mock

import pytest

from pdplugins.hosts.dynamo.local.pulse import EVERY_S, WINDOW, Pulse, PulseTaker
from pdplugins.types import Slo

SLO = Slo(ttft_s=1.5, tpot_s=0.05)


def page(ttft: tuple[int, int, int], in_flight: int = 0) -> str:
    """The frontend's page after so many requests with a TTFT of 0.5 s, 1.5 s and 3 s."""
    fast, middle, slow = ttft
    number, total = sum(ttft), 0.5 * fast + 1.5 * middle + 3 * slow
    name = "dynamo_frontend_time_to_first_token_seconds"
    return "\n".join(
        (
            f"# TYPE {name} histogram",
            f'{name}_bucket{{model="m",le="1"}} {fast}',
            f'{name}_bucket{{model="m",le="2"}} {fast + middle}',
            f'{name}_bucket{{model="m",le="+Inf"}} {number}',
            f'{name}_sum{{model="m"}} {total}',
            f'{name}_count{{model="m"}} {number}',
            "# TYPE dynamo_frontend_inflight_requests gauge",
            f'dynamo_frontend_inflight_requests{{model="m"}} {in_flight}',
            "# TYPE other gauge",
            "other 7",
            "",
        )
    )


def take(pages: list[str]) -> list[Pulse]:
    """Take a pulse of each page, every two seconds."""
    waiting, clock = list(pages), count(100.0, EVERY_S)
    taker = PulseTaker("http://frontend", SLO, fetch=lambda url: waiting.pop(0))
    with mock.patch("pdplugins.hosts.dynamo.local.pulse.monotonic", side_effect=clock):
        return [taker.take() for _ in pages]


def test_means_and_shares_are_of_what_came_since_the_first_look() -> None:
    """Requests from before do not count; the objective may fall inside a bucket."""
    _, pulse = take([page((5, 5, 5)), page((9, 9, 7), in_flight=4)])
    assert pulse.in_flight == 4
    assert pulse.ttft_s == pytest.approx((4 * 0.5 + 4 * 1.5 + 2 * 3) / 10)
    assert pulse.ttft_attainment == pytest.approx((4 + 4 / 2) / 10)
    assert (pulse.tpot_s, pulse.tpot_attainment) == (None, None)


def test_load_queue_and_errors_are_told() -> None:
    """Errors count from the first look, requests over the time between the looks."""
    more = (
        'dynamo_frontend_queued_requests{{model="m"}} {}',
        'dynamo_frontend_requests_total{{model="m",status="error"}} {}',
        'dynamo_frontend_requests_total{{model="m",status="success"}} 50',
    )
    pages = [
        "\n".join(
            (page((count, 0, 0)), *(line.format(number) for line, number in zip(more, numbers, strict=False)), "")
        )
        for count, *numbers in ((5, 0, 7, 0), (11, 3, 9, 0))
    ]
    pulse = take(pages)[-1]
    assert (pulse.requests_per_s, pulse.queued, pulse.errors) == (3.0, 3, 2)


def test_a_frontend_that_was_silent_gets_no_higher_rate() -> None:
    """No look succeeds meanwhile; the requests of that time are spread over it."""
    pages, times = iter([page((0, 0, 0)), page((100, 0, 0))]), iter([100.0, 140.0])
    taker = PulseTaker("http://frontend", SLO, fetch=lambda url: next(pages))
    with mock.patch("pdplugins.hosts.dynamo.local.pulse.monotonic", side_effect=times):
        assert [taker.take().requests_per_s for _ in range(2)] == [None, 2.5]


def test_nothing_new_is_none_and_not_zero() -> None:
    """An idle frontend has no latency."""
    assert take([page((5, 5, 5)), page((5, 5, 5))])[-1] == Pulse(in_flight=0)


def test_old_looks_are_forgotten() -> None:
    """The mean is of the last half minute."""
    pages = [page((i, 0, 0)) for i in range(WINDOW)] + [page((WINDOW, i, 0)) for i in range(1, WINDOW + 2)]
    assert take(pages)[-1].ttft_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    "answer",
    [
        *("<html>", "dynamo_frontend_inflight_requests 1e999", "\x00", "dynamo_frontend_inflight_requests{"),
        'dynamo_frontend_inflight_requests{model="m"} NaN',
        'dynamo_frontend_time_to_first_token_seconds_bucket{model="m"} 1\n',
    ],
)
def test_a_frontend_that_answers_nonsense_is_an_oserror_or_a_pulse(answer: str) -> None:
    """The next page is read as if nothing had been."""
    pages = iter([answer, page((5, 5, 5), in_flight=4)])
    taker = PulseTaker("http://frontend", SLO, fetch=lambda url: next(pages))
    with suppress(OSError):
        taker.take()
    assert taker.take().in_flight == 4
