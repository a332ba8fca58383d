"""When a request may be tried again: after a pause, and as long as retries are few among all requests.

A worker that broke loses its requests; each of them may move on at once, and once for nothing. A worker that is full
or answers with errors would only get fuller by retries. So those take from a budget: a share of the requests, and a
small reserve for a gateway with few of them.
"""

from __future__ import annotations

import random
from time import monotonic

from pdplugins.limits import GatewayConfig

RESERVE_PER_S = 1.0
"""How fast the reserve fills again by itself."""


class RetryBudget:
    """The retries of one gateway: a token bucket that requests fill by a share each."""

    def __init__(self, settings: GatewayConfig) -> None:
        self._share = settings.retry_share
        self._most = float(settings.retry_reserve)
        self._left = self._most
        self._filled_s = monotonic()

    def arrived(self) -> None:
        """Note a request."""
        self._left = min(self._left + self._share, self._most)

    def take(self) -> bool:
        """Take one retry, and tell whether there was one."""
        now_s = monotonic()
        self._left = min(self._left + (now_s - self._filled_s) * RESERVE_PER_S, self._most)
        self._filled_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def pause_s(settings: GatewayConfig, retry: int) -> float:
    """Return a random pause before retry number `retry`, counted from 0: the longest one doubles each time."""
    longest = min(settings.backoff_s * 2.0 ** min(retry, 30), settings.max_backoff_s)
    return random.uniform(0, longest)  # noqa: S311 - it spreads load, it keeps no secret
