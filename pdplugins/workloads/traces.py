"""Reads or generates a whole trace: what `pdplugins.workloads.sources` finds behind its name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from pdplugins.errors import TraceError
from pdplugins.registry import Registry, default_registry
from pdplugins.workloads.arrivals import check_size
from pdplugins.workloads.sources import Mixture, source_of
from pdplugins.workloads.trace import TraceRequest
from pdplugins.workloads.transform import check_pauses, check_span, merge


def read(path: Path | str, workload: str | None = None, registry: Registry | None = None) -> list[TraceRequest]:
    """Read or generate a trace. Requests are in order of arrival, the first one at 0, with times to the microsecond.

    `workload` names the format of the file `path`; None means to guess it. Raises TraceError when there is nothing to
    read, and ConfigError when a workload is not registered or its settings are wrong.
    """
    registry = registry or default_registry()
    source = source_of(Path(path), workload, registry)
    if isinstance(source, Mixture):
        return _mixed(source, registry)
    requests = list(source.requests(registry))
    if not requests:
        raise source.empty()
    ordered = from_zero(requests)
    check_span(ordered[-1].arrival_s, source.where)
    for request in ordered:
        if request.rounds:
            check_pauses(request, source.where)
    return ordered


def _mixed(mixture: Mixture, registry: Registry) -> list[TraceRequest]:
    traces: list[list[TraceRequest]] = []
    try:
        for part in mixture.parts:
            traces.append(part.apply(read(part.trace, None, registry)))
            check_size(sum(map(len, traces)))
    except RecursionError:
        raise TraceError(f"{mixture.where}: a part of this mix is the mix itself; take it out") from None
    return from_zero(merge(traces))


def from_zero(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Return the requests in order of arrival, the first one at 0."""
    ordered = sorted(requests, key=attrgetter("arrival_s"))
    start_s = ordered[0].arrival_s
    return [replace(request, arrival_s=round(request.arrival_s - start_s, 6)) for request in ordered]
