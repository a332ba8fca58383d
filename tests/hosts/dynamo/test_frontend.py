"""The frontend's running totals become traffic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.types import Traffic

IDLE = "dynamo_frontend_disconnected_clients 0\n"
"""A page before the first request."""


def page(requests: int, finished: int, model: str = "tiny70b") -> str:
    """A page of Dynamo 1.4.2's frontend after `requests` arrivals, `finished` of them of 1000/100 tokens."""

    def histogram(name: str, total: float, count: int) -> str:
        labels = f'{{model="{model}"}}'
        return (
            f"# TYPE dynamo_frontend_{name} histogram\n"
            f'dynamo_frontend_{name}_bucket{{model="{model}",le="+Inf"}} {count}\n'
            f"dynamo_frontend_{name}_sum{labels} {total}\ndynamo_frontend_{name}_count{labels} {count}\n"
        )

    return (
        "# TYPE dynamo_frontend_requests_started counter\n"
        f'dynamo_frontend_requests_started_total{{model="{model}"}} {requests}\n'
        + histogram("input_sequence_tokens", 1000 * finished, finished)
        + histogram("output_sequence_tokens", 100 * finished, finished)
        + histogram("time_to_first_token_seconds", 0.5 * finished, finished)
        + histogram("inter_token_latency_seconds", 0.02 * 99 * finished, 99 * finished)
    )


def frontend(*pages: str, model: str | None = None) -> FrontendMetrics:
    texts: Iterator[str] = iter(pages)
    times = iter(range(0, 1000, 5))
    return FrontendMetrics(
        "http://127.0.0.1:1/", model, fetch=lambda url: next(texts), clock=lambda: float(next(times))
    )


def test_traffic_is_the_difference_between_two_readings() -> None:
    metrics = frontend(page(10, 8), page(30, 18))
    assert metrics.collect() is None
    traffic = metrics.collect()
    assert traffic is not None
    assert (traffic.window_s, traffic.requests, traffic.isl_tokens, traffic.osl_tokens) == (5.0, 20.0, 1000.0, 100.0)
    assert (traffic.ttft_s, traffic.tpot_s) == (pytest.approx(0.5), pytest.approx(0.02))


def test_what_waits_for_a_first_token_is_told_beside_the_traffic() -> None:
    """A power controller moves watts to prefill only where prompts wait."""
    from pdplugins.hosts.power.beside import Frontend  # noqa: PLC0415
    from pdplugins.types import Role  # noqa: PLC0415

    host = Frontend("http://127.0.0.1:1")
    queued = '# TYPE dynamo_frontend_queued_requests gauge\ndynamo_frontend_queued_requests{model="tiny70b"} 7\n'
    host._metrics = frontend(page(10, 8) + queued, page(30, 18))
    (load,) = host.look().loads[Role.PREFILL]
    assert load.queued_requests == 7.0
    seen = host.look()
    assert seen.loads[Role.PREFILL][0].queued_requests == 0.0
    assert seen.traffic is not None
    assert seen.traffic.ttft_s == pytest.approx(0.5)


def buckets(name: str, counts: dict[str, int], total: float) -> str:
    rows = [f'dynamo_frontend_{name}_bucket{{model="m",le="{le}"}} {count}' for le, count in counts.items()]
    count = max(counts.values())
    ends = [f'dynamo_frontend_{name}_sum{{model="m"}} {total}', f'dynamo_frontend_{name}_count{{model="m"}} {count}']
    return "\n".join([*rows, *ends]) + "\n"


def test_the_second_moment_comes_from_the_buckets_and_the_hit_rate_from_cached_tokens() -> None:
    """Half of the prompts lie within 0-100 tokens and half within 900-1100, uniform as the estimate takes them."""
    prompts = buckets("input_sequence_tokens", {"100": 50, "900": 50, "1100": 100, "+Inf": 100}, 52_500)
    metrics = frontend(IDLE, prompts + buckets("cached_tokens", {"+Inf": 100}, 13_125))
    metrics.collect()
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.isl_tokens == 525
    assert traffic.isl_sq_tokens == pytest.approx((100**2 / 3 + 1000**2 + 100**2 / 3) / 2)
    assert traffic.prefix_hit_rate == 0.25
    assert traffic.local_share is None


def test_an_estimate_of_the_second_moment_keeps_the_mean_that_is_known() -> None:
    """All samples in one bucket: the variance is that of the bucket, moved to the mean."""
    metrics = frontend(IDLE, buckets("input_sequence_tokens", {"200": 10, "+Inf": 10}, 1500))
    metrics.collect()
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.isl_sq_tokens == pytest.approx(200**2 / 3 * 1.5**2)


def test_a_pause_is_zero_requests_of_unknown_length() -> None:
    metrics = frontend(page(10, 8), page(10, 8))
    metrics.collect()
    assert metrics.collect() == Traffic(5.0, 0.0)


def test_only_the_chosen_model_counts() -> None:
    metrics = frontend(IDLE, page(30, 18) + page(5, 5, "other").replace("# TYPE", "# was"), model="Tiny70B")
    metrics.collect()
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.requests == 30.0


def test_a_restarted_frontend_is_unknown_for_one_window() -> None:
    metrics = frontend(page(10, 8), page(3, 1), page(9, 7))
    assert [metrics.collect(), metrics.collect()] == [None, None]
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.requests == 6.0


@pytest.mark.parametrize("model", [None, "Tiny70B"])
def test_so_is_one_that_has_counted_more_since_its_restart(model: str | None) -> None:
    """As early in its life, or where another frontend answers at the same address."""
    one, other = (f'dynamo_component_uptime_seconds{{worker_id="{name}"}} 9\n' for name in "ab")
    metrics = frontend(page(10, 8) + one, page(30, 9) + other, page(50, 29) + other, model=model)
    assert [metrics.collect(), metrics.collect()] == [None, None]
    traffic = metrics.collect()
    assert traffic is not None
    assert (traffic.requests, traffic.isl_tokens) == (20.0, 1000.0)


def test_the_page_of_another_server_is_not_taken_for_no_traffic() -> None:
    metrics = frontend(page(10, 8), "<html>Welcome</html>", page(30, 18))
    metrics.collect()
    with pytest.raises(OSError, match="no metric dynamo_frontend_"):
        metrics.collect()
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.requests == 20.0


def test_a_frontend_that_does_not_answer_loses_no_requests() -> None:
    texts = iter([page(10, 8), OSError("refused"), page(30, 18)])

    def fetch(url: str) -> str:
        text = next(texts)
        if isinstance(text, OSError):
            raise text
        return text

    times = iter([0.0, 10.0])
    metrics = FrontendMetrics("http://127.0.0.1:1", fetch=fetch, clock=lambda: next(times))
    metrics.collect()
    with pytest.raises(OSError, match="refused"):
        metrics.collect()
    traffic = metrics.collect()
    assert traffic is not None
    assert (traffic.window_s, traffic.requests) == (10.0, 20.0)


def test_a_look_at_the_traffic_so_far_lets_the_window_go_on() -> None:
    metrics = frontend(page(10, 8), page(20, 9), page(30, 18))
    assert metrics.so_far() is None, "the first look begins the window"
    early, whole = metrics.so_far(), metrics.collect()
    assert early is not None
    assert whole is not None
    assert (early.window_s, early.requests) == (5.0, 10.0)
    assert (whole.window_s, whole.requests, whole.osl_tokens) == (10.0, 20.0, 100.0)


def two_frontends(pages: dict[str, list[str | OSError]], times: list[float]) -> FrontendMetrics:
    """Frontends at ``one`` and ``two``, which answer with these pages or not; the clock is the same for both."""
    now_s = iter([time for time in times for _ in pages])

    def fetch(url: str) -> str:
        text = pages[url.removeprefix("http://").removesuffix("/metrics")].pop(0)
        if isinstance(text, OSError):
            next(now_s)
            raise text
        return text

    return FrontendMetrics("http://one/, http://two", fetch=fetch, clock=lambda: next(now_s))


def test_several_frontends_are_one_traffic() -> None:
    longer = page(70, 0) + buckets("input_sequence_tokens", {"+Inf": 30}, 60_000)
    metrics = two_frontends({"one": [page(10, 8), page(30, 18)], "two": [IDLE, longer]}, [0.0, 5.0])
    assert metrics.collect() is None
    traffic = metrics.collect()
    assert traffic is not None
    assert (traffic.window_s, traffic.requests) == (5.0, 90.0)
    assert traffic.isl_tokens == (10 * 1000 + 60_000) / 40


def test_a_frontend_that_cannot_be_reached_leaves_the_others_traffic() -> None:
    gone = OSError("no route")
    metrics = two_frontends(
        {"one": [page(10, 8), page(30, 18), page(50, 38)], "two": [page(0, 0), gone, page(40, 40)]}, [0.0, 5.0, 10.0]
    )
    metrics.collect()
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.requests == 20.0
    traffic = metrics.collect()
    assert traffic is not None
    assert (traffic.window_s, traffic.requests) == (5.0, 20.0 + 40.0 * 5.0 / 10.0), "its rate, over its longer window"


def test_of_several_frontends_one_that_restarts_leaves_a_window_unknown() -> None:
    """What it has served before it ended is nowhere, so the sum of the others would look like less traffic."""
    pages = {"one": [page(10, 8), page(30, 18), page(50, 38)], "two": [page(70, 60), page(4, 2), page(24, 20)]}
    metrics = two_frontends(pages, [0.0, 5.0, 10.0])
    assert metrics.collect() is None
    assert metrics.collect() is None
    traffic = metrics.collect()
    assert traffic is not None
    assert traffic.requests == 40.0


def test_of_several_frontends_one_has_to_answer() -> None:
    metrics = two_frontends({"one": [OSError("no route")], "two": [OSError("refused")]}, [0.0])
    with pytest.raises(OSError, match="no route"):
        metrics.collect()
