"""Reads or generates a whole trace: what `pdplugins.workloads.sources` finds behind its name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from pdplugins.errors import TraceError
from pdplugins.registry import Registry, default_registry
from pdplugins.workloads.arrivals import check_size
from pdplugins.workloads.sources import MOST_DEPTH, MOST_PARTS, Mixture, Part, Source, source_of
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
        return _Mixing(source, registry).requests()
    return _of_source(source, registry)


def _of_source(source: Source, registry: Registry) -> list[TraceRequest]:
    requests = list(source.requests(registry))
    if not requests:
        raise source.empty()
    ordered = from_zero(requests)
    check_span(ordered[-1].arrival_s, source.where)
    for request in ordered:
        if request.rounds:
            check_pauses(request, source.where)
    return ordered


@dataclass(frozen=True, slots=True)
class _Node:
    """A mix whose parts are known: nothing of them has been read."""

    parts: list[tuple[Part, Source | _Node]]


class _Mixing:
    """Reads a mix, also of mixes. All workload files are looked at before any trace is read."""

    def __init__(self, mixture: Mixture, registry: Registry) -> None:
        self._registry = registry
        self._parts, self._requests = 0, 0
        self._root = self._resolved(mixture, ())

    def requests(self) -> list[TraceRequest]:
        """Return the arrivals of all parts together. Raises TraceError where that are too many."""
        return self._read(self._root)

    def _resolved(self, mixture: Mixture, within: tuple[Path, ...]) -> _Node:
        """Return the parts of `mixture`, which is itself part of the mixes in the files `within`."""
        file = mixture.where.resolve()
        if file in within:
            raise TraceError(f"{mixture.where}: a part of this mix is the mix itself; take it out")
        if len(within) >= MOST_DEPTH:
            raise TraceError(
                f"{mixture.where}: more than {MOST_DEPTH} mixes within one another; write their parts into fewer files"
            )
        self._parts += len(mixture.parts)
        if self._parts > MOST_PARTS:
            raise TraceError(f"{mixture.where}: more than {MOST_PARTS} parts of mixes together; take some out")
        return _Node([(part, self._source(part, (*within, file))) for part in mixture.parts])

    def _source(self, part: Part, within: tuple[Path, ...]) -> Source | _Node:
        source = source_of(Path(part.trace), None, self._registry)
        return self._resolved(source, within) if isinstance(source, Mixture) else source

    def _read(self, node: _Node) -> list[TraceRequest]:
        return from_zero(merge([part.apply(self._trace(source)) for part, source in node.parts]))

    def _trace(self, source: Source | _Node) -> list[TraceRequest]:
        if isinstance(source, _Node):
            return self._read(source)
        found = _of_source(source, self._registry)
        self._requests += len(found)
        check_size(self._requests)
        return found


def from_zero(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Return the requests in order of arrival, the first one at 0."""
    ordered = sorted(requests, key=attrgetter("arrival_s"))
    start_s = ordered[0].arrival_s
    return [replace(request, arrival_s=round(request.arrival_s - start_s, 6)) for request in ordered]
