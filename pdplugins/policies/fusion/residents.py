"""What the requests on each worker ask of its steps: a TPOT of their own."""

from __future__ import annotations

from collections.abc import Collection

from pdplugins.contracts.request import Request

MOST_KNOWN = 4096
"""Requests that are remembered; a host that tells of no end must not fill the memory."""


class Residents:
    """Where requests with a TPOT of their own decode, as far as this process has placed them."""

    def __init__(self) -> None:
        self._worker: dict[str, str] = {}
        """By request."""
        self._tpots: dict[str, dict[str, float]] = {}
        """By worker and request, s."""

    def placed(self, request: Request, worker: str) -> None:
        """Note where a request decodes. The last call for a request counts."""
        if request.terms is None or request.terms.tpot_s is None:
            return
        self.left(request.id)
        if len(self._worker) >= MOST_KNOWN:
            self.left(next(iter(self._worker)))
        self._worker[request.id] = worker
        self._tpots.setdefault(worker, {})[request.id] = request.terms.tpot_s

    def left(self, request_id: str) -> None:
        """Forget a request that has ended."""
        if (worker := self._worker.pop(request_id, None)) is not None:
            del self._tpots[worker][request_id]
            if not self._tpots[worker]:
                del self._tpots[worker]

    def on(self, worker: str) -> Collection[float]:
        """Return the TPOT, in seconds, of each request on a worker that has one of its own."""
        own = self._tpots.get(worker)
        return own.values() if own else ()
