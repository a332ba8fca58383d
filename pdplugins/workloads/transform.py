"""Transforms of a trace before a run, which all hosts share: clip, limit, scale, merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import merge as merge_sorted

from pydantic import BaseModel, ConfigDict, Field

from pdplugins.config import checked
from pdplugins.errors import TraceError
from pdplugins.workloads.trace import TraceRequest

LONGEST_S = 366 * 86_400
"""The longest trace. One that is longer has a wrong time in it, or a wrong unit, and takes hosts days or all memory."""


def check_span(span_s: float, where: str) -> None:
    """Raise TraceError for a trace that is too long. `where` names it."""
    if not span_s <= LONGEST_S:
        raise TraceError(
            f"{where}: {span_s / 86_400:.0f} days from its first arrival to its last, and {LONGEST_S // 86_400} are "
            "the most; are all its times in the same unit, and the rate what you mean?"
        )


def check_pauses(request: TraceRequest, where: str) -> None:
    """Raise TraceError for a session whose pauses are too long together. `where` names the trace."""
    pauses_s = math.fsum(later.gap_s for later in request.rounds)
    if not pauses_s <= LONGEST_S:
        raise TraceError(
            f"{where}: a session has {pauses_s / 86_400:.0f} days of gaps between its rounds, and "
            f"{LONGEST_S // 86_400} are the most; are its gaps in the unit that the format has?"
        )


class Transform(BaseModel):
    """Changes to a trace, in the order of the fields. Gaps inside sessions keep their values."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rate: float | None = Field(None, ge=1e-6, le=1e9, description="mean arrivals/s to scale the times to")
    clip_s: float | None = Field(None, gt=0, description="keep what arrives in the first seconds, at that rate")
    max_requests: int | None = Field(
        None, ge=1, le=10**9, description="keep that many requests; a session counts as one"
    )
    max_context_tokens: int | None = Field(None, ge=2, description="longest prompt plus output")

    @classmethod
    def of(cls, **options: float | None) -> Transform:
        """Return the changes that the options of a command ask for. Raises ConfigError for an invalid one."""
        return checked(cls, options, "trace options")

    def apply(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """Return the changed trace. Raises TraceError for a rate where all requests arrive at one time."""
        if self.rate is not None and len(requests) > 1:
            requests = scale(requests, self.rate * self._span_s(requests) / len(requests))
        if self.clip_s is not None:
            requests = clip(requests, self.clip_s)
        kept = list(requests[: self.max_requests])
        return kept if self.max_context_tokens is None else limit(kept, self.max_context_tokens)

    def _span_s(self, requests: Sequence[TraceRequest]) -> float:
        if span_s := requests[-1].arrival_s:
            return span_s
        raise TraceError(
            f"rate {self.rate:g}: all {len(requests)} requests of the trace arrive at one time, which no factor makes "
            "a rate; leave the rate out, or give a trace with arrival times"
        )


def clip(requests: Sequence[TraceRequest], duration_s: float) -> list[TraceRequest]:
    """Keep the requests that arrive in the first `duration_s` seconds of trace time; sessions keep all their rounds."""
    return [request for request in requests if request.arrival_s < duration_s]


def since(requests: Sequence[TraceRequest], start_s: float) -> list[TraceRequest]:
    """Keep the requests that arrive from `start_s` seconds of trace time on; their times then begin there."""
    late = [request for request in requests if request.arrival_s >= start_s]
    return [replace(request, arrival_s=request.arrival_s - start_s) for request in late]


def scale(requests: Sequence[TraceRequest], speed: float) -> list[TraceRequest]:
    """Divide arrival times by `speed`. Lengths, and gaps inside sessions, stay as they are."""
    if not speed > 0:
        raise TraceError(f"speed is {speed}; it must be above 0 (2 means twice as fast)")
    if requests:
        check_span(requests[-1].arrival_s / speed, f"the trace at {speed:g} times its speed")
    return [replace(request, arrival_s=request.arrival_s / speed) for request in requests]


def limit(requests: Sequence[TraceRequest], context_tokens: int) -> list[TraceRequest]:
    """Keep every prompt plus output within `context_tokens`, the model's longest context.

    A request, or the first round of a session, is shortened. Its output keeps at most all but one of these tokens, and
    its prompt is cut at the end to the rest. A session ends before the first later round that is too long, as it would
    in production.
    """
    return [_limited(request, context_tokens) for request in requests]


def _limited(request: TraceRequest, context_tokens: int) -> TraceRequest:
    if not request.rounds and request.isl_tokens + request.osl_tokens <= context_tokens:
        return request
    osl = min(request.osl_tokens, context_tokens - 1)
    first = replace(request, isl_tokens=min(request.isl_tokens, context_tokens - osl), osl_tokens=osl)
    fits = 0
    for _, isl, later_osl in list(first.turns())[1:]:
        if isl + later_osl > context_tokens:
            break
        fits += 1
    return replace(first, rounds=first.rounds[:fits])


def merge(traces: Sequence[Sequence[TraceRequest]]) -> list[TraceRequest]:
    """Return the arrivals of all `traces` together. No two of them share prefix blocks or sessions."""
    apart, offset = [], 0
    for part, trace in enumerate(traces):
        apart.append([_apart(request, part, offset) for request in trace])
        offset += 1 + max((block for request in trace for block in request.blocks), default=-1)
    return list(merge_sorted(*apart, key=lambda request: request.arrival_s))


def _apart(request: TraceRequest, part: int, offset: int) -> TraceRequest:
    session = None if request.session is None else f"{part}.{request.session}"
    return replace(request, session=session, blocks=tuple(block + offset for block in request.blocks))


def total(requests: Iterable[TraceRequest]) -> int:
    """Count requests. Every round of a session counts as one."""
    return sum(1 + len(request.rounds) for request in requests)
