"""When the tokens of one request came to its client."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from pdplugins.gateway.metrics import GatewayMetrics


class Latencies:
    """TTFT, ITL and TPOT of one request.

    A request's relay calls `tokens`, so this must not know the request. Else both would stay in memory as a circle,
    with prompt and answer, until Python looks for such circles, which it does once in hundreds of requests.

    :param arrived_s: when it came (monotonic).
    :param begun: is called when the first token comes.
    :param single: whether all tokens are of one answer. Those of several come mixed, so the time between two of them
        is neither ITL nor TPOT.
    """

    __slots__ = ("_arrived_s", "_begun", "_first_s", "_last_s", "_metrics", "_single")

    def __init__(self, metrics: GatewayMetrics, arrived_s: float, begun: Callable[[], None], *, single: bool) -> None:
        self._metrics = metrics
        self._single = single
        self._begun = begun
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._last_s = 0.0

    def tokens(self, count: int) -> None:
        """Note new tokens of a stream; those that come together share the time since the last ones."""
        now_s, metrics = monotonic(), self._metrics
        if self._first_s is None:
            self._first_s = now_s
            metrics.ttft.observe(now_s - self._arrived_s)
            self._begun()
        elif self._single:
            metrics.itl.observe((now_s - self._last_s) / count, count)
        self._last_s = now_s

    def ended(self, output_tokens: int | None) -> tuple[float | None, float | None]:
        """Return TTFT and TPOT of an answer that ends now, in seconds; None for what came in one piece.

        :param output_tokens: of an answer that is whole; None for another one, which has no TPOT. Several have none.
        """
        if self._first_s is None:
            return None, None
        gaps = (output_tokens or 0) - 1 if self._single else 0
        return self._first_s - self._arrived_s, (monotonic() - self._first_s) / gaps if gaps > 0 else None
