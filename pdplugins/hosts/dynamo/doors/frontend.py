"""Reads what clients did and felt from the ``/metrics`` page of Dynamo's frontend, without a Prometheus server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import NamedTuple

from pdplugins.contracts.planner import Traffic
from pdplugins.hosts.dynamo import fetching
from pdplugins.hosts.dynamo.scrape import Histogram, histogram, samples
from pdplugins.processes.addresses import check_url

REQUESTS = "dynamo_frontend_requests_started_total"
ISL = "dynamo_frontend_input_sequence_tokens"
OSL = "dynamo_frontend_output_sequence_tokens"
TTFT = "dynamo_frontend_time_to_first_token_seconds"
ITL = "dynamo_frontend_inter_token_latency_seconds"
CACHED = "dynamo_frontend_cached_tokens"
QUEUED = "dynamo_frontend_queued_requests"
PROCESS = "dynamo_component_uptime_seconds"
"""Says in its label `worker_id` which process answers."""
HISTOGRAMS = (ISL, OSL, TTFT, ITL, CACHED)


class FrontendMetrics:
    """Turns the running totals of frontends into the traffic between two calls of `collect`.

    :param url: of the frontend, for example ``http://127.0.0.1:8000``; of several, with commas between them.
    :param model: count only this model; all models when None.

    Raises ConfigError when `url` is none.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        fetch: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        urls = [one.strip().rstrip("/") for one in url.split(",")]
        for one in urls:
            check_url(one, "frontend_url")
        label = model.lower() if model else None  # the frontend lower-cases it
        self._pages = [_Page(f"{one}/metrics", label, fetch or fetching.fetch, clock) for one in urls]

    @property
    def queued_requests(self) -> float:
        """Requests that waited for their first token when `collect` was last called."""
        return sum(page.queued_requests for page in self._pages)

    def collect(self) -> Traffic | None:
        """Return the traffic since the last call; None at the first one, and where another process answers than before.

        Of several frontends those count that answer: what cannot be reached here may be cut off from clients too.
        Raises OSError when none answers in time, or with something else than a page of metrics. The window of a
        frontend then goes on to the next call that it answers.
        """
        found: list[_Since] = []
        failed: list[OSError] = []
        began = [page.before is not None for page in self._pages]
        restarted = False
        for read, known in zip(self._read(), began, strict=True):
            try:
                since = read()
            except OSError as error:
                failed.append(error)
            else:
                found += () if since is None else (since,)
                restarted |= known and since is None
        if len(failed) == len(self._pages):
            raise failed[0]
        with fetching.reading(self._url):
            return _traffic(found) if found and not restarted else None

    def so_far(self) -> Traffic | None:
        """Return what `collect` would, and let the window go on. Raises OSError as that does."""
        before = [page.before for page in self._pages]
        traffic = self.collect()
        for page, then in zip(self._pages, before, strict=True):
            page.before = then or page.before
        return traffic

    def _read(self) -> list[Callable[[], _Since | None]]:
        """Return what gives the traffic of each page, or raises; all are fetched at the same time."""
        if len(self._pages) == 1:
            return [self._pages[0].since]
        with fetching.reading(self._url), ThreadPoolExecutor(len(self._pages)) as pool:
            return [pool.submit(page.since).result for page in self._pages]


class _Since(NamedTuple):
    """What one frontend has counted since its page was last read."""

    window_s: float
    requests: float
    totals: Mapping[str, Histogram]


class _Look(NamedTuple):
    """What a page said, and when."""

    at_s: float
    process: frozenset[str]
    """Which process it was of; empty where the page does not say."""
    requests: float
    totals: Mapping[str, Histogram]


class _Page:
    """The page of one frontend."""

    def __init__(self, url: str, model: str | None, fetch: Callable[[str], str], clock: Callable[[], float]) -> None:
        self._url = url
        self._model = model
        self._fetch = fetch
        self._clock = clock
        self.before: _Look | None = None
        self.queued_requests = 0.0

    def since(self) -> _Since | None:
        """Return what has come since the last call; None at the first one, and after a restart. Raises OSError.

        A frontend that has restarted may have counted more since than before: its totals alone do not tell.
        """
        self.queued_requests = 0.0
        with fetching.reading(self._url):
            return self._since()

    def _since(self) -> _Since | None:
        now, before = self._look(), self.before
        self.before = now
        if before is None or now.at_s <= before.at_s:
            return None
        if now.process != before.process or now.requests < before.requests:
            return None
        since = {name: now.totals[name].since(before.totals[name]) for name in HISTOGRAMS}
        return _Since(now.at_s - before.at_s, now.requests - before.requests, since)

    def _look(self) -> _Look:
        page, now_s = self._fetch(self._url), self._clock()
        found = samples(page, (REQUESTS, QUEUED, *HISTOGRAMS), self._model)
        self.queued_requests = sum(sample.value for sample in found if sample.name == QUEUED)
        return _Look(
            now_s,
            frozenset(sample.labels.get("worker_id", "") for sample in samples(page, (PROCESS,))),
            sum(sample.value for sample in found if sample.name == REQUESTS),
            {name: histogram(found, name) for name in HISTOGRAMS},
        )


def _traffic(found: Sequence[_Since]) -> Traffic:
    """Return the traffic of all frontends: their rates add up, also where one was not read for longer than others."""
    window_s = min(one.window_s for one in found)
    since = {name: reduce(Histogram.plus, (one.totals[name] for one in found)) for name in HISTOGRAMS}
    return Traffic(
        window_s=window_s,
        requests=sum(one.requests * (window_s / one.window_s) for one in found),
        isl_tokens=since[ISL].mean,
        osl_tokens=since[OSL].mean,
        ttft_s=since[TTFT].mean,
        tpot_s=since[ITL].mean,
        isl_sq_tokens=since[ISL].mean_square,
        local_share=None,  # the frontend does not say which worker answered
        prefix_hit_rate=_share(since[CACHED].mean, since[ISL].mean),
    )


def _share(cached_tokens: float | None, isl_tokens: float | None) -> float | None:
    """Return the share of prompt tokens that were cached; None where engines do not report it."""
    if cached_tokens is None or not isl_tokens:
        return None
    return min(cached_tokens / isl_tokens, 1.0)
