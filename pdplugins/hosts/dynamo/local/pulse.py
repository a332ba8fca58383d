"""What clients feel right now, from the histograms and gauges of the frontend's ``/metrics`` page."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from prometheus_client.samples import Sample

from pdplugins.contracts.request import Slo
from pdplugins.hosts.dynamo.doors.frontend import ITL, QUEUED, TTFT
from pdplugins.hosts.dynamo.fetching import PageError, fetch, in_thread, reading
from pdplugins.hosts.dynamo.scrape import Histogram, histogram, samples

log = logging.getLogger("pdplugins.local")

IN_FLIGHT = "dynamo_frontend_inflight_requests"
ENDED = "dynamo_frontend_requests_total"
EVERY_S = 2.0
"""Seconds between two looks."""
WINDOW = 15
"""How many looks back the means go."""
SILENT_S = 60.0
"""Time without an answer after which a frontend hangs."""


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
    requests_per_s: float | None = None
    """First tokens a second."""
    queued: int | None = None
    """Requests that no worker has taken yet."""
    errors: int = 0
    """Requests that ended with an error, since the first look."""


class PulseTaker:
    """Polls the frontend and keeps the last results.

    :param url: of the frontend.
    :param fetch: returns the page; raises OSError.
    """

    def __init__(self, url: str, slo: Slo, fetch: Callable[[str], str] = fetch) -> None:
        self._url = f"{url}/metrics"
        self._slo = slo
        self._fetch = fetch
        self._looks: deque[tuple[float, Histogram, Histogram]] = deque(maxlen=WINDOW + 1)
        """When it looked, and what it saw."""
        self._errors: float | None = None
        self._complained = False

    async def watch(self, show: Callable[[Pulse], None], every_s: float = EVERY_S, silent_s: float = SILENT_S) -> str:
        """Take the pulse for as long as the frontend answers, be it nonsense. Return what to say when it hangs."""
        answered_s = monotonic()
        while True:
            try:
                pulse, answered_s = await in_thread(self.take), monotonic()
            except PageError as error:
                pulse, answered_s = Pulse(), monotonic()
                self._complain(error)
            except OSError as error:
                pulse = Pulse()
                if monotonic() - answered_s > silent_s:
                    return f"Dynamo's frontend has not answered for {silent_s:g} s ({error})"
            show(pulse)
            await asyncio.sleep(every_s)

    def _complain(self, error: PageError) -> None:
        """Log an answer that is no page, once."""
        if not self._complained:
            self._complained = True
            log.warning("%s; further ones are not logged", error)

    def take(self) -> Pulse:
        """Look once more. Blocks, so not for an event loop. Raises OSError when the frontend does not answer a page."""
        with reading(self._url):
            found = samples(self._fetch(self._url), (TTFT, ITL, IN_FLIGHT, QUEUED, ENDED))
            return self._pulse(found)

    def _pulse(self, found: Sequence[Sample]) -> Pulse:
        self._looks.append((monotonic(), histogram(found, TTFT), histogram(found, ITL)))
        (began_s, *first), (ended_s, *last) = self._looks[0], self._looks[-1]
        ttft, itl = (now.since(before) for now, before in zip(last, first, strict=True))
        ended = sum(one.value for one in found if one.name == ENDED and one.labels.get("status") == "error")
        self._errors = ended if self._errors is None else self._errors
        waiting = [sample.value for sample in found if sample.name == QUEUED]
        return Pulse(
            in_flight=int(sum(sample.value for sample in found if sample.name == IN_FLIGHT)),
            requests_per_s=ttft.count / (ended_s - began_s) if ttft.count > 0 and ended_s > began_s else None,
            queued=int(sum(waiting)) if waiting else None,
            errors=int(ended - self._errors),
            ttft_s=ttft.mean,
            tpot_s=itl.mean,
            ttft_attainment=ttft.share_below(self._slo.ttft_s),
            tpot_attainment=itl.share_below(self._slo.tpot_s),
        )
