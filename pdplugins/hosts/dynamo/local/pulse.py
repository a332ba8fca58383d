"""What clients feel right now, from the histograms and gauges of the frontend's ``/metrics`` page."""

from __future__ import annotations

import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pdplugins.contracts.request import Slo

_TTFT = "dynamo_frontend_time_to_first_token_seconds"
_ITL = "dynamo_frontend_inter_token_latency_seconds"
_IN_FLIGHT = "dynamo_frontend_inflight_requests"
_WANTED = (_TTFT, _ITL, _IN_FLIGHT)
EVERY_S = 2.0
"""Seconds between two looks."""
WINDOW = 15
"""How many looks back the means go."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the last looks showed; None where nothing happened."""

    in_flight: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_attainment: float | None = None
    """Share of first tokens inside the TTFT objective, interpolated within the frontend's histogram."""
    tpot_attainment: float | None = None
    """Share of token gaps inside the TPOT objective, likewise."""


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Running totals: count, sum, and how many samples were at most each bound."""

    count: float
    total: float
    bounds: tuple[tuple[float, float], ...]

    def since(self, before: _Histogram) -> _Histogram:
        then = dict(before.bounds)
        bounds = tuple((bound, value - then.get(bound, 0.0)) for bound, value in self.bounds)
        return _Histogram(self.count - before.count, self.total - before.total, bounds)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count > 0 else None

    def share_below(self, limit: float) -> float | None:
        """Interpolate linearly in the bucket that `limit` falls into."""
        if self.count <= 0:
            return None
        low, below = 0.0, 0.0
        for bound, at_most in self.bounds:
            if bound >= limit:
                part = (limit - low) / (bound - low) if bound != float("inf") else 0.0
                return (below + (at_most - below) * part) / self.count
            low, below = bound, at_most
        return 1.0


class PulseTaker:
    """Looks at the frontend again and again and keeps the last looks.

    :param url: of the frontend.
    :param fetch: returns the page; raises OSError when the frontend does not answer.
    """

    def __init__(self, url: str, slo: Slo, fetch: Callable[[str], str] | None = None) -> None:
        self._url = f"{url}/metrics"
        self._slo = slo
        self._fetch = fetch or _fetch
        self._looks: deque[tuple[_Histogram, _Histogram]] = deque(maxlen=WINDOW + 1)

    def take(self) -> Pulse:
        """Look once more; an empty pulse when the frontend does not answer. Blocks: not for an event loop."""
        try:
            page = self._fetch(self._url)
        except OSError:
            return Pulse()
        lines = [line for line in page.splitlines() if line.removeprefix("# TYPE ").startswith(_WANTED)]
        families = {family.name: family.samples for family in text_string_to_metric_families("\n".join(lines) + "\n")}
        self._looks.append((_histogram(families, _TTFT), _histogram(families, _ITL)))
        first, last = self._looks[0], self._looks[-1]
        ttft, itl = last[0].since(first[0]), last[1].since(first[1])
        return Pulse(
            in_flight=int(sum(sample.value for sample in families.get(_IN_FLIGHT, ()))),
            ttft_s=ttft.mean,
            tpot_s=itl.mean,
            ttft_attainment=ttft.share_below(self._slo.ttft_s),
            tpot_attainment=itl.share_below(self._slo.tpot_s),
        )


def _histogram(families: dict[str, list[Sample]], name: str) -> _Histogram:
    samples = families.get(name, [])
    return _Histogram(
        count=sum(s.value for s in samples if s.name == f"{name}_count"),
        total=sum(s.value for s in samples if s.name == f"{name}_sum"),
        bounds=tuple((float(s.labels["le"]), s.value) for s in samples if s.name == f"{name}_bucket"),
    )


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own frontend
        return str(answer.read().decode())
