"""Dynamo's plugin context to a `PlannerView`: the pydantic mirror (in-process) and protobuf (gRPC) alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dynamo.common.forward_pass_metrics import decode

from pdplugins.contracts.numbers import is_number
from pdplugins.contracts.planner import PlannerView, ScalePlan, Traffic
from pdplugins.contracts.workers import Pool, Role, WorkerLoad
from pdplugins.hosts.dynamo.loads import ForwardPass, from_message, worker_load

TICK = "tick-"
"""Dynamo's request ids are this and the host's time in seconds: wall clock live, virtual clock in replay."""
NEEDS = ("observations.fpm", "observations.workers")
"""What a planner plugin asks Dynamo for."""
NEEDS_TRAFFIC = "observations.traffic"
"""What it asks for besides when it cannot read the frontend; makes Dynamo's planner query Prometheus."""
LONG_WINDOW_S = 60.0
"""A window in which some request is bound to arrive while others are being served."""


def tick_time_s(context: Any) -> float | None:
    """Return the host's time of this tick in seconds; None when the request id does not tell it."""
    request_id = str(context.request_id)
    try:
        time_s = float(request_id.removeprefix(TICK)) if request_id.startswith(TICK) else math.nan
    except ValueError:
        return None
    return time_s if math.isfinite(time_s) else None


def planner_view(context: Any, now_s: float, traffic: Traffic | None, wanted: ScalePlan | None) -> PlannerView:
    """Build a view from one tick of Dynamo's planner.

    :param traffic: from `context_traffic`, or from a better source.
    :param wanted: the last plan, or the pools at start; Dynamo tells *that* workers start or stop, but not how many.
        None where Dynamo does not follow our plans.
    """
    workers = _optional(_optional(context, "observations"), "workers")
    prefill, decode_ = _all_loads(context)
    return PlannerView(
        now_s=now_s,
        traffic=traffic,
        prefill=_pool(workers, Role.PREFILL, wanted, prefill),
        decode=_pool(workers, Role.DECODE, wanted, decode_),
    )


def context_traffic(context: Any) -> Traffic | None:
    """Return the traffic that Dynamo itself observed; None when it did not say, or cannot mean it.

    Dynamo 1.4 answers an unreachable Prometheus with zero requests, which would read as idle and scale down. Zero
    requests while prefill has work, or while decodes outlast a long window, are taken as unknown.

    The mean lengths of a window without requests are 0 (or NaN) to Dynamo; here they are unknown.
    """
    seen = _optional(_optional(context, "observations"), "traffic")
    if seen is None:
        return None
    isl, osl = (float(n) if is_number(n) and n > 0 else None for n in (seen.isl, seen.osl))
    hit_rate = _optional(seen, "kv_hit_rate")
    traffic = Traffic(
        float(seen.duration_s),
        float(seen.num_req),
        isl,
        osl,
        prefix_hit_rate=float(hit_rate) if is_number(hit_rate) and 0 <= hit_rate <= 1 else None,
    )
    if traffic.requests == 0:
        prefill, decode_ = _all_loads(context)
        arrived = any(load.queued_requests or load.running_requests for load in prefill)
        outlasts = traffic.window_s >= LONG_WINDOW_S and any(load.running_requests for load in decode_)
        if arrived or outlasts:
            return None
    return traffic


def _all_loads(context: Any) -> tuple[tuple[WorkerLoad, ...], tuple[WorkerLoad, ...]]:
    fpm = _optional(_optional(context, "observations"), "fpm")
    if fpm is None:
        return (), ()
    return _loads(Role.PREFILL, fpm.prefill_engines), _loads(Role.DECODE, fpm.decode_engines)


def _optional(message: Any, name: str) -> Any:
    """Return a field that may be absent: protobuf says so by HasField, the pydantic mirror by None."""
    if message is None:
        return None
    has = getattr(message, "HasField", None)
    return None if has is not None and not has(name) else getattr(message, name)


def _pool(workers: Any, role: Role, wanted: ScalePlan | None, loads: tuple[WorkerLoad, ...]) -> Pool:
    ready = _optional(workers, f"ready_{role}")
    if ready is None:
        raise ValueError(f"Dynamo did not say how many {role} workers are ready; does the plugin's needs list name it?")
    expected = _optional(workers, f"expected_{role}")
    if expected is None and wanted is not None and _optional(workers, f"{role}_scaling_in_progress"):
        expected = getattr(wanted, role)
    coming = (ready if expected is None else expected) - ready
    return Pool(ready=ready, starting=max(0, coming), draining=max(0, -coming), loads=loads)


def _loads(role: Role, engines: Mapping[str, bytes]) -> tuple[WorkerLoad, ...]:
    """Sum the data-parallel ranks (``worker/rank``) of each worker."""
    seen: dict[str, ForwardPass] = {}
    for key, raw in sorted(engines.items()):
        metrics = decode(bytes(raw))
        if metrics is not None:
            worker, rank = key.rpartition("/")[0] or key, from_message(metrics)
            seen[worker] = seen[worker].plus(rank) if worker in seen else rank
    return tuple(worker_load(role, worker, ranks) for worker, ranks in seen.items())
