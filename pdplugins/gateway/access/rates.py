"""How many requests the holder of a key may make: a token bucket for each key."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from pdplugins.gateway.access.api_keys import ApiKey
from pdplugins.gateway.errors import GatewayError


class KeyRates:
    """The buckets of all keys.

    :param rate: requests a second of one key whose line says no other rate; 0 for no limit.
    :param burst: requests that may come at once.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """By name of the key: what was left in its bucket, and when."""

    def take(self, key: ApiKey) -> None:
        """Count one request. Raises GatewayError with status 429 when it is one too many."""
        rate = self._rate if key.rate is None else key.rate
        if not rate:
            return
        now_s = self._clock()
        left, at_s = self._buckets.get(key.name, (float(self._burst), now_s))
        left = min(left + (now_s - at_s) * rate, float(self._burst))
        if left < 1:
            why = f"more than {rate:g} requests a second with this key"
            raise GatewayError(429, why, max((1 - left) / rate, math.ulp(1.0)))
        self._buckets[key.name] = left - 1, now_s
