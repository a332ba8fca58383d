"""Helpers to simulate one phase alone: an ideal worker for the other phase, and a fixed share of local prefills."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Placement, Router
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.perf.plain import PlainPerf


@dataclass(frozen=True, slots=True)
class Ideal(PlainPerf):
    """A `pdplugins.types.PerfModel` of a worker that prefills instantly and decodes exactly at the TPOT objective."""

    tpot_s: float

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Return nearly zero."""
        return 1e-6

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        """Return the TPOT objective for any batch."""
        return self.tpot_s

    def transfer_s(self, tokens: float) -> float:
        """Return nearly zero, so that the link of the other worker decides."""
        return tokens * 1e-12

    def kv_capacity_tokens(self, tp: int) -> int:
        """Return more than any trace needs."""
        return 1 << 50

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        """Return more than any trace needs."""
        return float(1 << 50)

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        """Return one size."""
        return (1,)


class PartlyLocal:
    """A router that follows another one, but runs a share of the prefills on the session's decode worker."""

    def __init__(self, remote: Router, local: float) -> None:
        self._remote = remote
        self._local = local
        self._owed = 0.0

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Place a round. A fixed share of the rounds is placed locally."""
        placement = self._remote.on_arrival(request, workers, now_s)
        self._owed += self._local
        if self._owed < 1 or placement.second is None:
            return placement
        self._owed -= 1
        return Placement(placement.second, placement.second, placement.split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Do as the other router does."""
        return self._remote.on_prefill_done(request, placement, workers, now_s)
