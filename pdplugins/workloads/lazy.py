"""Reads or generates a trace request by request, for runs that are too long to hold in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice, takewhile
from operator import attrgetter
from pathlib import Path

from pdplugins.errors import ConfigError, TraceError
from pdplugins.registry import Registry, default_registry
from pdplugins.workloads.sources import Mixture, Source, source_of
from pdplugins.workloads.trace import TraceRequest
from pdplugins.workloads.transform import LONGEST_S, Transform, check_pauses, check_span, limit

_REST = attrgetter(*(field.name for field in fields(TraceRequest)[1:]))
"""All but the time of arrival, in the order of the fields."""


def requests(trace: Path | str, registry: Registry | None = None) -> Iterator[TraceRequest]:
    """Yield what `traces.read` returns, one by one. How much is held at once is up to the workload.

    JSON lines are read line by line, and a synthetic workload is generated phase by phase. An Azure trace is held as
    three columns. Raises what `traces.read` raises, and TraceError for a mix, which has to be sorted, and where a
    request comes before the one ahead of it.
    """
    registry = registry or default_registry()
    source = source_of(Path(trace), None, registry)
    if isinstance(source, Mixture):
        raise TraceError(f"{source.where}: a mix is sorted as a whole; run it without --stream")
    return _from_zero(source, source.requests(registry))


def changed(requests: Iterable[TraceRequest], changes: Transform) -> Iterator[TraceRequest]:
    """Yield the changed trace, as `Transform.apply` returns it. Raises ConfigError for a mean rate."""
    if changes.rate is not None:
        raise ConfigError("--stream --rate: only a whole trace has a mean rate; set the rate of the workload instead")
    clip_s, longest = changes.clip_s, changes.max_context_tokens
    if clip_s is not None:
        requests = takewhile(lambda request: request.arrival_s < clip_s, requests)
    kept = islice(requests, changes.max_requests)
    return kept if longest is None else (limit([request], longest)[0] for request in kept)


def _from_zero(source: Source, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Yield the requests with the first one at 0."""
    start_s: float | None = None
    latest_s = 0.0
    for number, request in enumerate(requests):
        if start_s is None:
            start_s = request.arrival_s
        at_s = round(request.arrival_s - start_s, 6)
        if at_s < latest_s:
            raise TraceError(
                f"{source.where}: request {number + 1} comes before the one ahead of it; run without --stream"
            )
        if at_s > LONGEST_S:
            check_span(at_s, source.where)
        if request.rounds:
            check_pauses(request, source.where)
        latest_s = at_s
        yield TraceRequest(at_s, *_REST(request))  # a tenth of the run would go into `replace`
    if start_s is None:
        raise source.empty()
