"""What a Prometheus may say of a frontend, however odd, is traffic or one line."""

from __future__ import annotations

from typing import Any

import pytest

from pdplugins.errors import TraceError
from pdplugins.studies.backtest import frontend
from pdplugins.studies.backtest.frontend import Selection
from pdplugins.studies.backtest.prometheus import Series, Span

SPAN = Span(0.0, 3600.0, 1700.0)


def test_a_bound_that_is_no_number_is_the_last_one() -> None:
    assert frontend._bound(Series({"le": "NaN"}, ())) == float("inf")
    assert frontend._bound(Series({}, ())) == float("inf")
    assert frontend._bound(Series({"le": "0.5"}, ())) == 0.5


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
