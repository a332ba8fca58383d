"""One stateless instance as Arrow's global scheduler knows it: its prefill queue and its decode load (Section 5.3)."""

from __future__ import annotations

from enum import StrEnum

from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import ANYTHING, Role, WorkerView
from pdplugins.policies.arrow.limits import DecodeLimits
from pdplugins.policies.arrow.startup import TtftPredictor

MOST = 1e9
"""Larger loads are cut to this, so that one absurd value does not make totals over thousands of instances inexact."""


class PoolName(StrEnum):
    """The four elastic pools of Section 5.2."""

    P = "P"
    """Handles prefill requests."""
    D = "D"
    """Handles decode requests."""
    PD = "P->D"
    """Scheduled to handle decode requests, still processes unfinished prefill requests."""
    DP = "D->P"
    """Scheduled to handle prefill requests, still processes unfinished decode requests."""


class Instance:
    """One instance.

    The scheduler sends every request, and hears when its prefill is done and when it has ended. So it tracks the
    prefill queue itself. The decode load comes from the host's reports. They do not include a request whose KV cache is
    on its way, or waits for free KV capacity. So the scheduler adds what it has sent and no report includes.
    """

    __slots__ = (
        "backlog_s", "counted", "decoding", "decoding_tokens", "free_at_s", "interval_s", "limits", "pool", "predictor",
        "prefills", "requests", "serial", "tokens", "view",
    )  # fmt: skip

    def __init__(
        self, view: WorkerView, serial: int, pool: PoolName, predictor: TtftPredictor, limits: DecodeLimits
    ) -> None:
        self.view = view
        self.serial = serial
        """Breaks ties: the oldest instance wins."""
        self.pool = pool
        self.predictor = predictor
        self.limits = limits
        self.prefills: dict[str, float] = {}
        """Unfinished prefill requests in order: id to predicted seconds."""
        self.backlog_s = 0.0
        """Sum of those seconds."""
        self.free_at_s = 0.0
        """e of Eq. 2: when the last of those requests is predicted to be done."""
        self.tokens = 0.0
        self.requests = 0.0
        """Decode requests that the host reports; the next field is their tokens."""
        self.interval_s: float | None = None
        """Recent average token generation interval; None when the host does not report it."""
        self.decoding: dict[str, int] = {}
        """Requests that were sent here to decode and have not ended: id to prompt tokens."""
        self.decoding_tokens = 0
        """Sum of those tokens."""
        self.counted: tuple[float, ...] | None = None
        """The figures that `pools.DecodeLoad` has counted for this instance."""

    def can_serve(self, role: Role) -> bool:
        """Return whether the instance can serve a phase, whatever its pool: a stock server has one of them."""
        return role in (self.view.capabilities or ANYTHING).phases

    # --- prefill ---------------------------------------------------------------------------------------------------

    def prefill_s(self, request: Request) -> float:
        """Predict the prefill time of `request` here, less what earlier rounds of its session left in the KV cache."""
        whole_s = self.predictor.prefill_s(request.prompt_tokens)
        if not request.history_tokens:
            return whole_s
        return max(whole_s - self.predictor.prefill_s(request.history_tokens), 0.0)

    def prefill_delay_s(self, now_s: float) -> float:
        """Predict the queueing delay q_1 of Eq. 1."""
        return max(self.free_at_s - now_s, 0.0)

    def meets(self, request: Request, now_s: float, ttft_s: float, share: float) -> bool:
        """Return whether the delay here is at most `share` of what prefill leaves of the TTFT SLO `ttft_s` (Eq. 1).

        It is so for every prompt that misses its SLO without any delay: no other instance would help.
        """
        slack_s = ttft_s - self.prefill_s(request)
        return slack_s < 0 or self.prefill_delay_s(now_s) <= share * slack_s

    def start_prefill(self, request: Request, now_s: float) -> None:
        """Note that `request` was sent here. The instance refuses one that its KV cache can never hold."""
        if 0 < self.view.kv_capacity_tokens <= request.prompt_tokens:
            return
        self._forget(request.id)
        takes_s = self.prefill_s(request)
        self.free_at_s = max(self.free_at_s, now_s) + takes_s
        self.prefills[request.id] = takes_s
        self.backlog_s += takes_s

    def end_prefill(self, request: str, now_s: float) -> None:
        """Note that a prefill is done. Those before it are done too: one-token answers, which never decode."""
        if request not in self.prefills:
            return
        for earlier in list(self.prefills):
            self._forget(earlier)
            if earlier == request:
                break
        self.free_at_s = now_s + self.backlog_s

    def prefilled(self, request: str, now_s: float) -> None:
        """Note that a prefill is done, which says nothing of those before it."""
        if request in self.prefills:
            self._forget(request)
            self.free_at_s = now_s + self.backlog_s

    def drop(self, request: str) -> None:
        """Remove a request that will not be prefilled, so that the queue no longer counts it."""
        self.free_at_s -= self.prefills.get(request, 0.0)
        self._forget(request)

    def _forget(self, request: str) -> None:
        self.backlog_s -= self.prefills.pop(request, 0.0)
        if not self.prefills:
            self.backlog_s = 0.0  # exactly, without rounding errors

    # --- decode ----------------------------------------------------------------------------------------------------

    @property
    def running_tokens(self) -> float:
        """Tokens of the requests that decode here, or will do so: the decode load."""
        sent = len(self.decoding)
        if sent <= self.requests:
            return self.tokens
        return self.tokens + self.decoding_tokens * (sent - self.requests) / sent

    @property
    def decodes(self) -> float:
        """Requests that decode here, or will do so."""
        return max(self.requests, len(self.decoding))

    def fits(self, request: Request, tpot_s: float) -> bool:
        """Return whether `request` may decode here: Algorithm 2, and free KV capacity and a place in the batch.

        Max Running Tokens may be exceeded by this one request, as in the paper. The KV cache may not.
        """
        kv_tokens, tokens = self.view.kv_capacity_tokens, self.running_tokens
        return (
            tokens <= self.limits.tokens
            and (kv_tokens <= 0 or tokens + request.prompt_tokens <= kv_tokens)
            and self.decodes < self.limits.requests
            and (self.interval_s is None or self.interval_s <= tpot_s)
        )

    @property
    def speeds(self) -> tuple[float, float]:
        """What decode delivers here now, and at most, in tokens read per second."""
        limits, kv_tokens = self.limits, self.view.kv_capacity_tokens
        full = kv_tokens if 0 < kv_tokens < limits.full_tokens else limits.full_tokens
        return limits.speed(self.running_tokens), limits.speed(full)

    def start_decode(self, request: Request) -> None:
        """Note that `request` was sent here to decode."""
        self.end_decode(request.id)
        self.decoding[request.id] = request.prompt_tokens
        self.decoding_tokens += request.prompt_tokens

    def end_decode(self, request: str) -> None:
        """Note that a request has ended, if it decodes here."""
        self.decoding_tokens -= self.decoding.pop(request, 0)

    def observe(self, now_s: float) -> None:
        """Read the load that the host reports. If it is missing or not a number, the last one stays."""
        load = self.view.load
        running, queued, decoding = load.running_requests, load.queued_requests, load.decode_requests
        tokens = load.running_tokens if load.decode_tokens is None else load.decode_tokens
        if is_number(tokens):
            self.tokens = _bounded(tokens)
        if is_number(decoding):
            self.requests = _bounded(decoding)
        elif is_number(running) and is_number(queued):
            self.requests = _bounded(running + queued - len(self.prefills))
        interval_s = load.recent_tbt_s
        self.interval_s = _bounded(interval_s) if is_number(interval_s) else None
        if self.prefills and now_s > self.free_at_s:
            self._late(now_s, is_number(load.queued_tokens) and load.queued_tokens > 0)

    def _late(self, now_s: float, queue: bool) -> None:
        """Correct a predicted end that has passed although work is left."""
        if queue:  # the first request is late, and the others wait for it
            self.free_at_s = now_s + self.backlog_s - next(iter(self.prefills.values()))
        else:  # the rest is in the running step, and delays no other request
            self.prefills.clear()
            self.backlog_s = 0.0


def _bounded(load: float) -> float:
    return min(max(load, 0.0), MOST)
