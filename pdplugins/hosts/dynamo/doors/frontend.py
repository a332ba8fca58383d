"""Reads what clients did and felt from the ``/metrics`` page of Dynamo's frontend, without a Prometheus server."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from pdplugins.contracts.planner import Traffic

REQUESTS = "dynamo_frontend_requests_started_total"
ISL = "dynamo_frontend_input_sequence_tokens"
OSL = "dynamo_frontend_output_sequence_tokens"
TTFT = "dynamo_frontend_time_to_first_token_seconds"
ITL = "dynamo_frontend_inter_token_latency_seconds"


class FrontendMetrics:
    """Turns the frontend's running totals into the traffic between two calls of `collect`.

    :param url: of the frontend, for example ``http://127.0.0.1:8000``.
    :param model: count only this model; all models when None.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        fetch: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url.rstrip("/") + "/metrics"
        self._model = model.lower() if model else None  # the frontend lower-cases its label
        self._fetch = fetch or _fetch
        self._clock = clock
        self._before: tuple[float, Mapping[str, float]] | None = None

    def collect(self) -> Traffic | None:
        """Return the traffic since the last call; None at the first one, and after the frontend restarted.

        Raises OSError when the frontend does not answer; the window then goes on to the next call that it answers.
        """
        text, now_s = self._fetch(self._url), self._clock()
        totals = _totals(text, self._model)
        before, self._before = self._before, (now_s, totals)
        if before is None or now_s <= before[0] or totals.get(REQUESTS, 0.0) < before[1].get(REQUESTS, 0.0):
            return None
        then_s, then = before
        delta = {name: value - then.get(name, 0.0) for name, value in totals.items()}
        return Traffic(
            window_s=now_s - then_s,
            requests=delta.get(REQUESTS, 0.0),
            isl_tokens=_mean(delta, ISL),
            osl_tokens=_mean(delta, OSL),
            ttft_s=_mean(delta, TTFT),
            tpot_s=_mean(delta, ITL),
        )


def _totals(text: str, model: str | None) -> dict[str, float]:
    wanted = {REQUESTS, *(f"{name}{part}" for name in (ISL, OSL, TTFT, ITL) for part in ("_sum", "_count"))}
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in wanted and model in {None, sample.labels.get("model")}:
                totals[sample.name] = totals.get(sample.name, 0.0) + float(sample.value)
    return totals


def _mean(delta: Mapping[str, float], name: str) -> float | None:
    count = delta.get(f"{name}_count", 0.0)
    return delta[f"{name}_sum"] / count if count > 0 else None


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - the operator names the frontend
        return str(answer.read().decode())
