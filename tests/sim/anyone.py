"""Policies that do anything, but the same thing whenever they see the same: what the two engines are compared under."""

from __future__ import annotations

import random
from zlib import crc32

from pdplugins.types import (
    BatchPlan,
    BatchView,
    Flip,
    FlowDecision,
    Go,
    GpuView,
    Hold,
    Outcome,
    Placement,
    PlannerView,
    PowerPlan,
    Refuse,
    Request,
    Role,
    ScalePlan,
    Waiting,
    WorkerView,
)


def dice(*seen: object) -> random.Random:
    """Random numbers whose seed is what was seen, so that any difference in that shows."""
    return random.Random(crc32(repr(seen).encode()))


class AnyRouter:
    """Places requests anyhow: anywhere, split anywhere, or open until prefill is done; sometimes by load."""

    def __init__(self, seed: int, kinds: str) -> None:
        self._dice = random.Random(seed)
        self._kinds = kinds

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        kind = self._dice.choice(self._kinds)
        first, second = self._dice.choice(workers), self._dice.choice(workers)
        if kind == "L":
            first = min(workers, key=lambda w: (w.load.queued_tokens + w.load.running_tokens, w.id))
            second = min(workers, key=lambda w: (w.load.running_requests + w.load.queued_requests, w.id))
        if kind == "T":
            first = min(workers, key=lambda w: (w.load.recent_ttft_s or 0.0, w.id))
            second = max(workers, key=lambda w: (w.load.recent_tbt_s or 0.0, w.id))
        if kind == "R":  # by role
            first = next((w for w in workers if w.role is Role.PREFILL), first)
            second = next((w for w in workers if w.role is Role.DECODE), second)
        if kind == "K":  # by free KV tokens
            first = max(workers, key=lambda w: (w.free_kv_tokens or 0, w.id))
            second = min(workers, key=lambda w: (w.free_kv_tokens or 0, w.id))
        split = request.prompt_tokens
        if kind == "C":
            first = max(workers, key=lambda w: (sum(block in w.cached_blocks for block in request.blocks), w.id))
        if kind == "S":
            split = self._dice.randint(0, split + 30)
        return Placement(first.id, None if kind == "O" else second.id, split)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        second = self._dice.choice(workers)
        if self._dice.random() < 0.5:
            second = min(workers, key=lambda w: (w.load.recent_tbt_s or 0.0, w.load.running_tokens, w.id))
        return Placement(placement.first, second.id, placement.split)


class AnyPlanner:
    """Wants any pools, of up to `most` workers each."""

    def __init__(self, interval_s: float, most: int = 3) -> None:
        self.interval_s = interval_s
        self._most = most

    def plan(self, view: PlannerView) -> ScalePlan:
        rolled = dice(view)
        return ScalePlan(rolled.randint(1, self._most), rolled.randint(1, self._most), "any")


class AnyPower:
    """Wants any caps, and now and then another role."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        rolled = dice(gpus, view)
        flips = ()
        gpu = rolled.choice(gpus) if gpus else None
        if gpu is not None and sum(other.role is gpu.role for other in gpus) > 1 and rolled.random() < 0.2:
            flips = (Flip(gpu.index, Role.PREFILL if gpu.role is Role.DECODE else Role.DECODE),)
        return PowerPlan({gpu.index: rolled.uniform(300, 800) for gpu in gpus}, flips)


class AnyScheduler:
    """Wants any part of any prompts, in any order; or to wait; or decodes only."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        rolled = dice(view, now_s)
        queue = rolled.sample(view.queue, rolled.randint(0, len(view.queue)))
        wanted = {queued.request.id: rolled.choice([1, 100, queued.remaining_tokens]) for queued in queue}
        return BatchPlan(wanted, wait_s=rolled.choice([0.0, 0.0, 0.03]))

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        pass


class AnyFlow:
    """Lets any waiting request go on, refuses some, or holds: until a time, or while something is in service."""

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._in_service: set[str] = set()

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self._in_service.discard(waiting.request.id)
        self._waiting.append(waiting.request.id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        loads = [
            (w.load.queued_requests, w.load.queued_tokens, w.load.running_tokens, w.free_kv_tokens) for w in workers
        ]
        rolled = dice(self._waiting, loads, now_s)
        if not workers or not self._waiting or rolled.random() < 0.5:
            return Hold(None if self._in_service and rolled.random() < 0.7 else now_s + rolled.uniform(0.01, 0.5))
        request = rolled.choice(self._waiting)
        self._waiting.remove(request)
        if rolled.random() < 0.1:
            return Refuse(request, rolled.uniform(0, 50))
        self._in_service.add(request)
        return Go(request)

    def on_left(self, request_id: str) -> None:
        self._waiting.remove(request_id)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        self._in_service.discard(request.id)
