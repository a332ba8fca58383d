"""A router over plain workers whose loads a test sets."""

from __future__ import annotations

from typing import Any

from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.router import ArrowRouter
from pdplugins.testing import LinearModel, Load, Worker, deployment
from pdplugins.types import Ending, Outcome, Placement, Request, Role

PERF = LinearModel(
    prefill_fixed_s=1e-3,
    prefill_token_s=1e-4,
    prefill_square_s=1e-9,
    decode_fixed_s=5e-3,
    decode_token_s=1e-7,
    transfer_fixed_s=1e-3,
    kv_tokens=400_000,
    tps=(1, 2, 4),
)
"""Prefill takes 1 ms + 0.1 ms a token + 1 ns a token squared; a decode step 5 ms + 0.1 us a token."""
DEPLOYMENT = deployment(PERF, ttft_s=1.0, tpot_s=0.05, startup_s=0.0)


class Cluster:
    """A router and its workers. `clock_s` is the time of every call."""

    def __init__(self, prefill: int, decode: int, **settings: Any) -> None:
        roles = [Role.PREFILL] * prefill + [Role.DECODE] * decode
        self.workers: tuple[Worker, ...] = tuple(
            Worker(f"{role[0]}{index}", role, kv_capacity_tokens=400_000) for index, role in enumerate(roles)
        )
        self.router = ArrowRouter(
            ArrowSettings(**{"ttft_share": 1.0, "low_load": 0.5, "busy_load": 0.7, **settings}), DEPLOYMENT
        )
        self.clock_s = 0.0
        self.count = 0
        self.open: dict[str, tuple[Request, Placement]] = {}
        """Requests whose prefill is not done."""
        self.decodes: dict[str, Request] = {}

    def arrive(self, tokens: int) -> Placement:
        request = Request(str(self.count), self.clock_s, tokens)
        self.count += 1
        placement = self.router.on_arrival(request, self.workers, self.clock_s)
        self.open[request.id] = request, placement
        return placement

    def prefilled(self, name: str) -> Placement:
        request, placement = self.open.pop(name)
        self.decodes[name] = request
        return self.router.on_prefill_done(request, placement, self.workers, self.clock_s)

    def end(self, name: str, ending: Ending) -> None:
        self.router.on_ended(self.open[name][0], Outcome(ending))

    def finished(self, name: str, output_tokens: int = 1) -> None:
        self.router.on_ended(self.decodes.pop(name), Outcome(Ending.FINISHED, output_tokens))

    def pool(self, worker: str) -> str:
        return str(self.router._instances[worker].pool)

    def load(self, worker: str) -> Load:
        return next(w.load for w in self.workers if w.id == worker)

    def decoding(self, worker: str, requests: int, tokens: int) -> None:
        load = self.load(worker)
        load.running_requests, load.running_tokens = requests, tokens
