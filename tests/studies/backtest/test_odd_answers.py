"""What a Prometheus may say of a frontend, however odd, is traffic or one line."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pdplugins.config import find, load
from pdplugins.contracts.request import Slo
from pdplugins.errors import TraceError
from pdplugins.hosts.dynamo.doors.frontend import HISTOGRAMS, ISL, ITL, REQUESTS, TTFT
from pdplugins.results import Spread
from pdplugins.studies.backtest import commands, frontend
from pdplugins.studies.backtest.frontend import Selection
from pdplugins.studies.backtest.prometheus import Series, Span
from pdplugins.studies.backtest.recording import Recording, spread
from pdplugins.studies.backtest.runs import Backtest
from pdplugins.types import TraceRequest

SPAN = Span(0.0, 3600.0, 1700.0)


def test_a_bound_that_is_no_number_is_the_last_one() -> None:
    assert frontend._bound(Series({"le": "NaN"}, ())) == float("inf")
    assert frontend._bound(Series({}, ())) == float("inf")
    assert frontend._bound(Series({"le": "0.5"}, ())) == 0.5


def test_a_bound_beyond_all_numbers_or_below_zero_is_none() -> None:
    assert frontend._bound(Series({"le": "1e308"}, ())) == float("inf")
    assert frontend._bound(Series({"le": "-3"}, ())) == 0.0


@pytest.mark.parametrize("value", [1e308, 1e16])
def test_more_than_a_frontend_can_count_is_refused(value: float) -> None:
    with pytest.raises(TraceError, match=r"a metric has grown by .* in one step"):
        windows({f"{TTFT}_sum": value})


@pytest.mark.parametrize(
    ("count", "inside"),
    [(1e-300, (1.0, 2.0)), (4.0, (9.0, 1.0)), (4.0, (-2.0, 1e15)), (5e-324, (0.0, 0.0)), (1e-6, (1e15, 1e15))],
)
def test_shares_and_means_are_numbers_whatever_is_counted(count: float, inside: tuple[float, float]) -> None:
    odd: dict[str, float] = {}
    for name in (TTFT, ITL, ISL):
        odd |= {f"{name}_count": count, f"{name}_sum": 1e15}
    found = windows(odd, inside)
    (part, *_) = frontend._by_part(found, SPAN)
    times = spread(frontend._all(found, TTFT))
    assert all(
        value is None or math.isfinite(value) for value in (part.ttft_s, part.itl_s, *times.model_dump().values())
    )
    bounds = frontend._attainment(found, Slo(2.0, 0.08))
    assert bounds is None or 0.0 <= bounds.low <= bounds.high <= 1.0
    assert all("inf" not in note for note in frontend._cache_note(found))


def windows(values: dict[str, float], inside: tuple[float, float] = (1.0, 2.0)) -> list[frontend.Window]:
    """Return the one step in which each metric has grown by 2, buckets by `inside`, but for `values`."""

    def series(value: float, **labels: str) -> Series:
        return Series(labels, ((SPAN.start_s + SPAN.step_s, value),))

    found = {REQUESTS: [series(values.get(REQUESTS, 2.0))]}
    for name in HISTOGRAMS:
        found |= {key: [series(values.get(key, 2.0))] for key in (f"{name}_count", f"{name}_sum")}
        found[f"{name}_bucket"] = [series(value, le=le) for le, value in zip(("1", "+Inf"), inside, strict=True)]
    return frontend._windows(found, SPAN)


@pytest.mark.parametrize("held", [1e300, 1e6])
def test_more_workers_than_there_can_be_are_not_believed(held: float) -> None:
    class Boastful:
        def ask(self, queries: dict[str, str], span: Span) -> dict[str, list[Any]]:
            return {name: [Series({}, ((span.start_s, held),))] for name in queries}

    assert frontend._pools(Boastful(), (), SPAN) == ()  # type: ignore[arg-type]


def test_what_a_prometheus_says_reaches_the_terminal_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded_as("[/x]\x1b[31m")
    base = load(find("dopd"))
    commands._show(Backtest(recording, base, "round-robin", None, Spread(), (), (), ()))
    printed = capsys.readouterr().out
    assert "[/x]?[31m" in printed
    assert "\x1b" not in printed


def recorded_as(name: str) -> Recording:
    none = Spread(mean=None)
    return Recording(name, [TraceRequest(0.0, 1, 1)], 1.0, none, none, None, (), (), (name,))


def test_more_requests_than_a_number_holds_are_too_many() -> None:
    windows = [frontend.Window(0.0, requests, {}) for requests in (5.0, 1e300, 1e300)]
    with pytest.raises(TraceError, match="requests were recorded at that time; a backtest takes"):
        frontend._rebuilt(windows, 1.0, 0)


def test_a_time_without_a_recorded_step_is_one_line() -> None:
    class Silent:
        def ask(self, queries: dict[str, str], span: Span) -> dict[str, list[Any]]:
            return {name: [] for name in queries}

    with pytest.raises(TraceError, match="was not recorded in the steps of that time"):
        frontend._model(Silent(), Selection(start_s=0.0, end_s=3600.0), (), SPAN)  # type: ignore[arg-type]
