"""RAPID's dynamic resource scheduling: Algorithm 1 of the paper (Section 3.3).

All GPUs of a phase have the same cap. Watts move first, one step at a time, because that takes effect within a second
and costs nothing. When the caps reach a limit, a GPU changes its phase and the caps become uniform.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.power import Flip, GpuView, PowerPlan
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.policies.rapid.config import RapidSettings

OTHER = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}
PART_W = 2.0**-10
"""Caps are multiples of it where whole watts are too coarse. Sums of such numbers are exact."""


class Recent:
    """The `middle` of the values reported in the last `span_s` seconds: their mean, or their median."""

    def __init__(self, span_s: float, middle: Callable[[list[float]], float]) -> None:
        self._span_s = span_s
        self._middle = middle
        self._values: deque[tuple[float, float]] = deque()

    def update(self, now_s: float, value: float | None) -> float | None:
        """Take in `value` and return the middle; None when no value was reported in the whole span."""
        if is_number(value):
            self._values.append((now_s, value))
        while self._values and now_s - self._values[0][0] >= self._span_s:
            self._values.popleft()
        return self._middle([value for _, value in self._values]) if self._values else None


@dataclass(frozen=True, slots=True)
class Caps:
    """One cap for the GPUs of each phase, in watts."""

    prefill_w: float
    decode_w: float

    def of(self, role: Role) -> float:
        """Return the cap of the GPUs of one phase."""
        return self.prefill_w if role is Role.PREFILL else self.decode_w


class RapidController:
    """`pdplugins.types.PowerController` of RAPID."""

    def __init__(self, settings: RapidSettings, deployment: Deployment) -> None:
        if settings.min_w * deployment.gpu_budget > settings.budget_w:
            raise ConfigError(
                f"power rapid: {deployment.gpu_budget} GPUs of at least {settings.min_w:g} W exceed budget_w "
                f"{settings.budget_w:g}; lower min_w or gpu_budget, or raise budget_w"
            )
        self._settings = settings
        self._slo = deployment.slo
        self._ttft = Recent(settings.recent_s, fmean)
        self._tpot = Recent(settings.recent_s, median)  # one step that computes a preempted prompt again is no trend
        self._caps: Caps | None = None
        self._moving: dict[int, tuple[Role, float]] = {}
        """GPUs whose flip was asked for: to which phase, and when."""
        self._refused: Counter[int] = Counter()
        """How often in a row a flip of each GPU did not happen."""
        self._ready_s = -math.inf

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `control`: MIN_TIME."""
        return self._settings.interval_s

    def start_from(self, caps: Caps) -> None:
        """Move on from these caps; what exceeds the budget becomes uniform."""
        self._caps = caps

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        """Return the caps and flips wanted from now on: one pass of the loop of Algorithm 1."""
        roles = {gpu.index: gpu.role for gpu in gpus}
        self._note_moves(roles, view.now_s)
        self._caps = self._within_budget(roles, self._caps or self._start(roles))
        traffic = view.traffic
        ttft_s = self._ttft.update(view.now_s, traffic.ttft_s if traffic else None)
        tpot_s = self._tpot.update(view.now_s, _token_interval_s(view))
        slow_prefill, slow_decode = _exceeds(ttft_s, self._slo.ttft_s), _exceeds(tpot_s, self._slo.tpot_s)
        queue = _queued(view) > self._settings.queue_threshold * max(sum(r is Role.PREFILL for r in roles.values()), 1)
        sink: Role | None = None
        if slow_prefill and queue and not slow_decode:  # lines 8-10
            sink = Role.PREFILL
        elif slow_decode and not slow_prefill:  # line 17
            sink = Role.DECODE
        if sink is None or view.now_s < self._ready_s:
            return self._plan(roles, (), "")
        return self._move(gpus, roles, view, sink)

    def _note_moves(self, roles: dict[int, Role], now_s: float) -> None:
        """Note which flips have happened. One that takes too long was refused, and another GPU is tried first."""
        for gpu, (role, asked_s) in list(self._moving.items()):
            if gpu not in roles or roles[gpu] is role:
                del self._moving[gpu], self._refused[gpu]
            elif now_s - asked_s >= self._settings.flip_timeout_s:
                del self._moving[gpu]
                self._refused[gpu] += 1

    def _start(self, roles: dict[int, Role]) -> Caps:
        """Return the static allocation. A phase without a given cap gets what the other one leaves of the budget."""
        settings = self._settings
        prefills = sum(role is Role.PREFILL for role in roles.values())
        decodes = len(roles) - prefills
        prefill_w, decode_w = settings.prefill_w, settings.decode_w
        if prefill_w is None and decode_w is None:
            return self._uniform(roles)
        if decode_w is None and prefill_w is not None:
            left_w = settings.budget_w - prefills * prefill_w
            decode_w = min(_share_w(left_w, decodes, settings.min_w), settings.max_decode_w)
        elif prefill_w is None and decode_w is not None:
            left_w = settings.budget_w - decodes * decode_w
            prefill_w = min(_share_w(left_w, prefills, settings.min_w), settings.max_w)
        return Caps(prefill_w or 0.0, decode_w or 0.0)

    def _move(self, gpus: tuple[GpuView, ...], roles: dict[int, Role], view: PlannerView, sink: Role) -> PowerPlan:
        """Give the phase `sink` more power, or a GPU where the caps are at a limit (lines 11-16 and 18-23)."""
        settings, source = self._settings, OTHER[sink]
        reason, limit = "", settings.move == "gpus"
        flips: tuple[Flip, ...] = ()
        if settings.move in ("power", "both"):
            if (caps := self._shifted(roles, sink)) is not None:
                self._caps, reason = caps, f"{settings.step_w:g} W from each {source} GPU to {sink}"
                self._ready_s = view.now_s + settings.cooldown_s
            limit = settings.move == "both" and self._shifted(roles, sink) is None
        if limit and (gpu := self._spare(gpus, view, source)) is not None:
            self._moving[gpu] = sink, view.now_s
            self._ready_s = view.now_s + settings.gpu_cooldown_s
            flips, reason = (Flip(gpu, sink),), f"GPU {gpu} from {source} to {sink}"
            if settings.move == "both":
                self._caps = self._uniform(roles)
        return self._plan(roles, flips, reason)

    def _spare(self, gpus: tuple[GpuView, ...], view: PlannerView, source: Role) -> int | None:
        """Return the GPU of phase `source` with the least draw; None if it is the last worker, or one moves now.

        Those whose flip did not happen come last.
        """
        workers = view.prefill.ready if source is Role.PREFILL else view.decode.ready
        candidates = [gpu for gpu in gpus if gpu.role is source]
        if self._moving or min(workers, len(candidates)) < 2:  # a worker may have several GPUs, which move together
            return None

        def place(gpu: GpuView) -> tuple[int, float, int]:
            return self._refused[gpu.index], gpu.draw_w if is_number(gpu.draw_w) else math.inf, -gpu.index

        return min(candidates, key=place).index

    def _shifted(self, roles: dict[int, Role], sink: Role) -> Caps | None:
        """MOVEPOWER: return the caps after one more step; None when a limit is reached."""
        settings, caps, source = self._settings, self._caps, OTHER[sink]
        sources = sum(role is source for role in roles.values())
        sinks = len(roles) - sources
        if caps is None or not sources or not sinks:
            return None
        lower_w = max(caps.of(source) - settings.step_w, settings.min_w)
        left_w = settings.budget_w - sources * lower_w
        upper_w = min(_share_w(left_w, sinks, caps.of(sink)), self._most_w(sink))
        if lower_w >= caps.of(source) or upper_w <= caps.of(sink):
            return None
        return Caps(upper_w, lower_w) if sink is Role.PREFILL else Caps(lower_w, upper_w)

    def _within_budget(self, roles: dict[int, Role], caps: Caps) -> Caps:
        """Return `caps`, or uniform caps if those exceed the budget with the present GPUs."""
        total_w = sum(caps.of(role) for role in roles.values())
        fits = total_w <= self._settings.budget_w and min(caps.prefill_w, caps.decode_w) >= self._settings.min_w
        return caps if fits else self._uniform(roles)

    def _uniform(self, roles: dict[int, Role]) -> Caps:
        """DISTRIBUTEUNIFORMPOWER."""
        settings, gpus = self._settings, len(roles)
        least_w = settings.min_w if settings.min_w * gpus <= settings.budget_w else 0.0
        share_w = _share_w(settings.budget_w, gpus, least_w)
        return Caps(min(share_w, self._most_w(Role.PREFILL)), min(share_w, self._most_w(Role.DECODE)))

    def _most_w(self, role: Role) -> float:
        return self._settings.max_w if role is Role.PREFILL else self._settings.max_decode_w

    def _plan(self, roles: dict[int, Role], flips: tuple[Flip, ...], reason: str) -> PowerPlan:
        caps = self._caps or self._uniform(roles)
        if reason:
            reason += f"; caps {caps.prefill_w:.0f} W prefill, {caps.decode_w:.0f} W decode"
        return PowerPlan({gpu: caps.of(role) for gpu, role in roles.items()}, flips, reason)


def _share_w(watts: float, gpus: int, least_w: float) -> float:
    """Return the share of each GPU, at least `least_w`: in whole watts where those are more, else in `PART_W`."""
    gpus = max(gpus, 1)
    whole_w = watts // gpus
    return whole_w if whole_w > least_w else max(watts // (gpus * PART_W) * PART_W, least_w)


def _exceeds(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _token_interval_s(view: PlannerView) -> float | None:
    """Return the mean time between tokens of the requests that decode now, in seconds.

    Where no decode worker reports it, the TPOT of the requests that ended since the last look stands in, which is late
    by a whole answer.
    """
    felt = [
        (load.recent_tbt_s, max(load.running_requests, 1.0) if is_number(load.running_requests) else 1.0)
        for load in view.decode.loads
        if is_number(load.recent_tbt_s)
    ]
    if not felt:
        return view.traffic.tpot_s if view.traffic else None
    return sum(tbt_s * requests for tbt_s, requests in felt) / sum(requests for _, requests in felt)


def _queued(view: PlannerView) -> float:
    return sum(load.queued_requests for load in view.prefill.loads if is_number(load.queued_requests))
