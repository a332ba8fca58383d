"""Plain data of what policies saw and answered, for the decision log.

What planners and power controllers saw is kept whole, since a replay needs it. What routers, flow policies and batch
schedulers saw contains what clients sent: texts are cut, lists are bounded and sessions are hashed. A value that the
host did not say (None) is left out there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from itertools import islice
from numbers import Integral, Real
from typing import Any

from pdplugins.contracts.batching import BatchView
from pdplugins.contracts.flow import Go, Hold, Refuse
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Request
from pdplugins.contracts.workers import WorkerLoad, WorkerView
from pdplugins.errors import printable

WHOLE = frozenset({Kind.PLANNER, Kind.POWER})
"""The kinds of which every decision is kept as it was, so that a run can be replayed."""
MOST_TEXT = 128
"""Characters of the longest text that is kept."""
MOST_ITEMS = 64
"""Items of the longest list that is kept."""
_LOAD_FIELDS = tuple(field.name for field in fields(WorkerLoad) if field.name != "worker")


def seen_data(kind: Kind, seen: Mapping[str, Any], answer: object) -> dict[str, Any]:
    """Return what a policy saw as plain data."""
    if kind in WHOLE:  # the plan before is in the line before
        return {name: exact(value) for name, value in seen.items() if name != "before"}
    data = {name: plain(value) for name, value in seen.items() if name != "workers"}
    if (workers := seen.get("workers")) is not None:
        data["workers"] = (
            _candidates(workers, seen.get("request"), (answer, seen.get("followed")))
            if kind is Kind.ROUTER
            else len(workers)
        )
    return data


def answer_data(kind: Kind, answer: object) -> Any:
    """Return what a policy answered as plain data."""
    return exact(answer) if kind in WHOLE else plain(answer)


def exact(value: Any) -> Any:
    """Return `value` as plain data that reads back the same."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: exact(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [exact(item) for item in value]
    return value


def plain(value: Any) -> Any:
    """Return `value` as plain data of bounded size."""
    if (known := _KNOWN.get(type(value))) is not None:
        return known(value)
    if isinstance(value, Mapping):
        return {cut(str(name)): plain(item) for name, item in islice(value.items(), MOST_ITEMS)}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in islice(value, MOST_ITEMS)]
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Real):  # of numpy
        return int(value) if isinstance(value, Integral) else float(value)
    return cut(value) if isinstance(value, str) else type(value).__name__


def cut(text: str) -> str:
    """Return `text` short enough to keep and safe to print; request ids are compared in this form."""
    short = text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
    return printable(short)


def hashed(session: str) -> str:
    """Return a short hash of a session's name: the same session is recognised, its name is not shown."""
    return blake2b(session.encode("utf-8", "replace"), digest_size=6).hexdigest()


def _fields(value: Any) -> dict[str, Any]:
    data = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return {name: item for name, item in data.items() if item is not None}


def _request(request: Request) -> dict[str, Any]:
    data = {
        "id": cut(request.id),
        "arrival_s": request.arrival_s,
        "prompt_tokens": request.prompt_tokens,
        "predicted_output_tokens": request.predicted_output_tokens,
        "history_tokens": request.history_tokens,
        "session": None if request.session is None else hashed(request.session),
        "bound_worker": plain(request.bound_worker),
        "blocks": len(request.blocks),
        "terms": plain(request.terms),
    }
    return {name: value for name, value in data.items() if value is not None}


def _batch_view(view: BatchView) -> dict[str, Any]:
    own = {"own_tpot_s": plain(min(view.decode_tpots_s))} if view.decode_tpots_s else {}
    return {
        "queue": len(view.queue),
        "queued_tokens": sum(item.remaining_tokens for item in view.queue),
        "first": [_fields(item) for item in view.queue[:8]],
        "decode_requests": view.decode_requests,
        "decode_context_tokens": view.decode_context_tokens,
        **own,
    }


def _candidates(
    workers: Iterable[WorkerView], request: Request | None, placements: Iterable[object]
) -> list[dict[str, Any]]:
    """Return the loads of the workers, first those that placements name, so that they are never left out."""
    named = {getattr(placement, name, None) for placement in placements for name in ("first", "second")}
    ordered = sorted(workers, key=lambda worker: worker.id not in named)
    return [_worker(worker, request) for worker in ordered[:MOST_ITEMS]]


def _worker(worker: WorkerView, request: Request | None) -> dict[str, Any]:
    data: dict[str, Any] = {"id": cut(worker.id), "role": worker.role, "kv_capacity_tokens": worker.kv_capacity_tokens}
    for name, value in (("tp", worker.tp), ("free_kv_tokens", worker.free_kv_tokens)):
        if value is not None:
            data[name] = value
    if request is not None and request.blocks:
        cached = worker.cached_blocks
        data["cached_blocks"] = sum(block in cached for block in request.blocks)
    load = ((name, getattr(worker.load, name)) for name in _LOAD_FIELDS)
    data["load"] = {name: plain(value) for name, value in load if value is not None}
    return data


def _does(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda answer: {"do": name, **_fields(answer)}


_KNOWN: dict[type, Callable[[Any], Any]] = {
    Request: _request,
    BatchView: _batch_view,
    Go: _does("go"),
    Refuse: _does("refuse"),
    Hold: _does("hold"),
}
