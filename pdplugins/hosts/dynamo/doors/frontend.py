"""Reads what clients did and felt from the ``/metrics`` page of Dynamo's frontend, without a Prometheus server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

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
HISTOGRAMS = (ISL, OSL, TTFT, ITL, CACHED)


class FrontendMetrics:
    """Turns the frontend's running totals into the traffic between two calls of `collect`.

    :param url: of the frontend, for example ``http://127.0.0.1:8000``.
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
        check_url(url, "frontend_url")
        self._url = url.rstrip("/") + "/metrics"
        self._model = model.lower() if model else None  # the frontend lower-cases its label
        self._fetch = fetch or fetching.fetch
        self._clock = clock
        self._before: tuple[float, float, Mapping[str, Histogram]] | None = None
        self.queued_requests = 0.0
        """Requests that waited for their first token when `collect` was last called."""

    def collect(self) -> Traffic | None:
        """Return the traffic since the last call; None at the first one, and after the frontend restarted.

        Raises OSError when the frontend does not answer in time, or with something else than a page of metrics. The
        window then goes on to the next call that it answers.
        """
        with fetching.reading(self._url):
            return self._collected()

    def so_far(self) -> Traffic | None:
        """Return what `collect` would, and let the window go on. Raises OSError as that does."""
        before = self._before
        traffic = self.collect()
        self._before = before or self._before
        return traffic

    def _collected(self) -> Traffic | None:
        found, now_s = samples(self._fetch(self._url), (REQUESTS, QUEUED, *HISTOGRAMS), self._model), self._clock()
        requests = sum(sample.value for sample in found if sample.name == REQUESTS)
        self.queued_requests = sum(sample.value for sample in found if sample.name == QUEUED)
        totals = {name: histogram(found, name) for name in HISTOGRAMS}
        before, self._before = self._before, (now_s, requests, totals)
        if before is None or now_s <= before[0] or requests < before[1]:
            return None
        since = {name: totals[name].since(before[2][name]) for name in HISTOGRAMS}
        return Traffic(
            window_s=now_s - before[0],
            requests=requests - before[1],
            isl_tokens=since[ISL].mean,
            osl_tokens=since[OSL].mean,
            ttft_s=since[TTFT].mean,
            tpot_s=since[ITL].mean,
            isl_sq_tokens=since[ISL].mean_square,
            osl_sq_tokens=since[OSL].mean_square,
            local_share=None,  # the frontend does not say which worker answered
            prefix_hit_rate=_share(since[CACHED].mean, since[ISL].mean),
        )


def _share(cached_tokens: float | None, isl_tokens: float | None) -> float | None:
    """Return the share of prompt tokens that were cached; None where engines do not report it."""
    if cached_tokens is None or not isl_tokens:
        return None
    return min(cached_tokens / isl_tokens, 1.0)
