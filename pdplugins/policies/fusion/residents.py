"""What the requests on each worker ask of its steps: a TPOT of their own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import isnan

from pdplugins.contracts.request import Request

MOST_KNOWN = 4096
"""Requests that are remembered; a host that tells of no end must not fill the memory."""


class Residents:
    """Where requests with a TPOT of their own decode, as far as this process has placed them."""

    def __init__(self) -> None:
        self._placed: dict[str, tuple[str, float]] = {}
        """Worker and TPOT, by request."""
        self._tpots: dict[str, list[float]] = {}
        """By worker, s, ascending: a router asks for the tightest again and again."""

    def placed(self, request: Request, worker: str) -> None:
        """Note where a request decodes. The last call for a request counts."""
        tpot_s = None if request.terms is None else request.terms.tpot_s
        if tpot_s is None or isnan(tpot_s):  # which has no place in an order
            return
        self.left(request.id)
        if len(self._placed) >= MOST_KNOWN:
            self.left(next(iter(self._placed)))
        self._placed[request.id] = worker, tpot_s
        insort(self._tpots.setdefault(worker, []), tpot_s)

    def left(self, request_id: str) -> None:
        """Forget a request that has ended."""
        if (placed := self._placed.pop(request_id, None)) is None:
            return
        worker, tpot_s = placed
        own = self._tpots[worker]
        del own[bisect_left(own, tpot_s)]
        if not own:
            del self._tpots[worker]

    def on(self, worker: str) -> Sequence[float]:
        """Return the TPOT, in seconds, of each request on a worker that has one of its own, ascending."""
        return self._tpots.get(worker, ())
