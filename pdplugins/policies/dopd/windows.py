"""Gathers traffic until a window of it is as long as the planner's interval, for hosts that ask sooner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import Traffic
from pdplugins.policies.dopd.load import LARGEST

WHOLE = 0.9
"""Share of the interval from which a window counts as whole, as hosts do not keep time exactly."""


class Windows:
    """Windows that are shorter than an interval, until together they are as long."""

    def __init__(self, interval_s: float) -> None:
        self._least_s = WHOLE * interval_s
        self._parts: list[Traffic] = []

    def add(self, traffic: Traffic) -> Traffic:
        """Return the traffic since the last whole window, with that of `traffic`."""
        self._parts.append(traffic)
        return together(self._parts)

    def take(self, traffic: Traffic) -> bool:
        """Return whether `traffic`, that `add` returned, is a whole window; the next one begins then."""
        if traffic.window_s < self._least_s:
            return False
        self._parts.clear()
        return True


def together(parts: Sequence[Traffic]) -> Traffic:
    """Return the traffic of adjacent windows as one; means are weighted by the requests, at least one a window."""
    if len(parts) == 1:
        return parts[0]

    def mean(of: Callable[[Traffic], float | None]) -> float | None:
        known = [(value, max(part.requests, 1.0)) for part in parts if is_number(value := of(part))]
        return sum(value * weight for value, weight in known) / sum(w for _, w in known) if known else None

    return Traffic(
        window_s=min(sum(part.window_s for part in parts), LARGEST),
        requests=min(sum(part.requests for part in parts), LARGEST),
        isl_tokens=mean(lambda part: part.isl_tokens),
        osl_tokens=mean(lambda part: part.osl_tokens),
        ttft_s=mean(lambda part: part.ttft_s),
        tpot_s=mean(lambda part: part.tpot_s),
        isl_sq_tokens=mean(lambda part: part.isl_sq_tokens),
        osl_sq_tokens=mean(lambda part: part.osl_sq_tokens),
        local_share=mean(lambda part: part.local_share),
        prefix_hit_rate=mean(lambda part: part.prefix_hit_rate),
        local_prefill_tokens=mean(lambda part: part.local_prefill_tokens),
    )
