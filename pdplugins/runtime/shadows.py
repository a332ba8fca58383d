"""``pdplugins explain --shadow``: what policies that nobody followed would have gained, from their decision log.

Both sides of a comparison are estimated in the same way (`pdplugins.runtime.estimates`), from the loads that the log
holds. Those are the loads of what was followed: a policy that acts would have made others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isfinite, sqrt
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any

from pdplugins.config import Config, parse
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.errors import ConfigError, printable
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.decision_reader import Entry, Run, read, reading
from pdplugins.runtime.estimates import PlacementEstimate, attainment

LARGEST = 5
"""Requests that are shown by name: those with the largest differences."""
LONGEST_GAP = 10.0
"""Longest time that a decision counts for, in usual intervals between decisions; in a longer gap nobody decided."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One request: what was followed and what was not, with estimates in seconds."""

    request: str
    followed: tuple[str, str, int]
    shadow: tuple[str, str, int]
    followed_ttft_s: float
    shadow_ttft_s: float
    followed_tpot_s: float
    shadow_tpot_s: float


@dataclass(frozen=True, slots=True)
class Pools:
    """One run of a planner. Hours are worker-hours and GPU-hours; shares are of requests, and None where unknown."""

    hours: float
    agrees: float
    """Share of the time in which both wanted the same pools."""
    followed_workers_h: float
    shadow_workers_h: float
    followed_gpus_h: float
    shadow_gpus_h: float
    followed_attainment: float | None
    shadow_attainment: float | None


def shadowed(path: Path) -> Iterator[str]:
    """Yield readable lines about each run of the log at `path`. Raises ConfigError for a log without such decisions."""
    for number, (run, deployment, placed, pools) in enumerate(_runs(path), 1):
        status = "nobody followed it" if run.header.get("shadow") else "not marked as a run in shadow"
        yield printable(f"run {number}, {run.header['at']}: {status}; profile {_config(run).deployment.profile}")
        if placed:
            yield from map(printable, _router_lines(placed, deployment))
        if pools is not None:
            yield from _planner_lines(pools)


def as_data(path: Path) -> list[dict[str, Any]]:
    """Return the same as plain data, with every request. Raises as `shadowed`."""
    return [
        {
            "at": run.header["at"],
            "shadow": bool(run.header.get("shadow")),
            "router": [asdict(request) for request in placed],
            "planner": None if pools is None else asdict(pools),
        }
        for run, _, placed, pools in _runs(path)
    ]


def _runs(path: Path) -> list[tuple[Run, Deployment, list[Placed], Pools | None]]:
    found = []
    for run in read(path):
        with reading(run.where):
            deployment = build_deployment(_config(run))
            str(run.header["at"])  # it is shown later, and may be missing
            pools = pools_of(run, deployment)
        placed = placements(run, deployment)
        if placed or pools is not None:
            found.append((run, deployment, placed, pools))
    if not found:
        raise ConfigError(
            f"{path}: no decision of a router in shadow or of a planner; run 'pdplugins gateway --shadow "
            "--decision-log FILE' or a planner with shadow and a decision log first"
        )
    return found


# --- routers --------------------------------------------------------------------------------------------------------


def placements(run: Run, deployment: Deployment) -> list[Placed]:
    """Return the requests of which the log has both placements, each with its last decision."""
    estimate = PlacementEstimate(deployment)
    found: dict[str, Placed] = {}
    for entry in run.kind(Kind.ROUTER):
        with reading(entry.where):
            if (request := _placed(entry, estimate)) is not None:
                found[request.request] = request
    return [*found.values()]


def _placed(entry: Entry, estimate: PlacementEstimate) -> Placed | None:
    seen, shadow = entry.seen, entry.answer or {}
    followed = seen.get("followed") or {}
    workers = {worker["id"]: worker for worker in seen.get("workers", ())}
    named = {placement.get(name) for placement in (followed, shadow) for name in ("first", "second")}
    if not named <= workers.keys():  # still open, or without a shadow
        return None
    request = seen["request"]
    times = [
        time(placement, request, workers)
        for time in (estimate.ttft_s, estimate.tpot_s)
        for placement in (followed, shadow)
    ]
    if not all(map(isfinite, times)):
        raise ValueError("a load that is no finite number")
    return Placed(request["id"], _key(followed), _key(shadow), *times)


def _key(placement: Mapping[str, Any]) -> tuple[str, str, int]:
    return placement["first"], placement["second"], placement["split"]


def _router_lines(placed: Sequence[Placed], deployment: Deployment) -> Iterator[str]:
    same = sum(request.followed == request.shadow for request in placed)
    first = sum(request.followed[0] == request.shadow[0] for request in placed)
    second = sum(request.followed[1] == request.shadow[1] for request in placed)
    count = len(placed)
    yield (
        f"router: {count:,} requests in the log; placed the same {same / count:.1%}, prefill on the same worker "
        f"{first / count:.1%}, decode on the same worker {second / count:.1%}"
    )
    yield f"  {'estimated':<22}{'followed':>10}{'shadow':>10}{'mean difference (95 %)':>32}"
    for name, objective_s in (("ttft", deployment.slo.ttft_s), ("tpot", deployment.slo.tpot_s)):
        before, after = _times(placed, name)
        for label, value in (("P50", median), ("P99", _p99)):
            change = _difference([b - a for a, b in zip(before, after, strict=True)]) if label == "P50" else ""
            numbers = f"{value(before) * 1e3:>10.1f}{value(after) * 1e3:>10.1f}{change:>32}"
            yield f"  {f'{name.upper()} {label}, ms':<22}{numbers}"
        kept = [mean(time <= objective_s for time in times) for times in (before, after)]
        yield f"  {f'{name.upper()} ≤ {objective_s:g} s':<22}{kept[0]:>10.1%}{kept[1]:>10.1%}"
    for request in sorted(placed, key=_gain)[:LARGEST]:
        if _gain(request):
            yield (
                f"  {request.request}: {_text(request.followed)} → {_text(request.shadow)}, "
                f"TTFT {(request.shadow_ttft_s - request.followed_ttft_s) * 1e3:+.1f} ms, "
                f"TPOT {(request.shadow_tpot_s - request.followed_tpot_s) * 1e3:+.2f} ms"
            )


def _times(placed: Sequence[Placed], name: str) -> tuple[list[float], list[float]]:
    before, after = ([getattr(request, f"{side}_{name}_s") for request in placed] for side in ("followed", "shadow"))
    return before, after


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def _difference(gains_s: Sequence[float]) -> str:
    """Return the mean of paired differences with its interval."""
    if len(gains_s) < 2:
        return f"{gains_s[0] * 1e3:+.1f}"
    middle, wide = mean(gains_s) * 1e3, 1.96e3 * stdev(gains_s) / sqrt(len(gains_s))
    return f"{middle:+.1f} ({middle - wide:+.1f} to {middle + wide:+.1f})"


def _gain(request: Placed) -> float:
    return -abs(request.shadow_ttft_s - request.followed_ttft_s)


def _text(placement: tuple[str, str, int]) -> str:
    first, second, _ = placement
    return first if first == second else f"{first}+{second}"


# --- planners -------------------------------------------------------------------------------------------------------


def pools_of(run: Run, deployment: Deployment) -> Pools | None:
    """Return what the pools that a planner wanted come to beside those that were there; None without two decisions."""
    seen = (entry for entry in run.kind(Kind.PLANNER) if entry.view is not None)
    entries = [entry for entry in seen if entry.fault != Fault.BAD_METRICS]  # those say nothing of the traffic
    if len(entries) < 2:
        return None
    gaps_s = [(b.now_s or 0.0) - (a.now_s or 0.0) for a, b in pairwise(entries)]
    most_s = LONGEST_GAP * max(median(gaps_s), 1e-9)
    spans = [min(max(gap_s, 0.0), most_s) for gap_s in gaps_s]
    held = [(*_both(entry), gap_s) for entry, gap_s in zip(entries, spans, strict=False)]
    total_s = sum(gap_s for *_, gap_s in held) or 1e-9
    sides = [[(there, gap_s) for there, _, gap_s in held], [(wanted, gap_s) for _, wanted, gap_s in held]]
    workers_h = [sum(sum(pools) * gap_s for pools, gap_s in side) / 3600 for side in sides]
    gpus_h = [sum(deployment.gpus(*pools) * gap_s for pools, gap_s in side) / 3600 for side in sides]
    kept = _attained(entries, deployment)
    agrees = sum(gap_s for there, wanted, gap_s in held if there == wanted) / total_s
    return Pools(total_s / 3600, agrees, workers_h[0], workers_h[1], gpus_h[0], gpus_h[1], kept[0], kept[1])


def _both(entry: Entry) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the workers that were paid for, which serve or start, and those that the planner wanted."""
    assert entry.view is not None  # noqa: S101 - the caller looked
    prefill, decode = entry.view.prefill, entry.view.decode
    with reading(entry.where):
        there = prefill.ready + prefill.starting, decode.ready + decode.starting
        return there, (entry.plan.prefill, entry.plan.decode)


def _attained(entries: Sequence[Entry], deployment: Deployment) -> tuple[float | None, float | None]:
    """Return the estimated shares, by requests, of the pools that served and of those that the planner wanted."""
    sums, requests = [0.0, 0.0], 0.0
    for before, entry in pairwise(entries):
        view = entry.view
        if view is None or (traffic := view.traffic) is None:
            continue
        with reading(entry.where):
            served = attainment(deployment, traffic, view.prefill.ready, view.decode.ready)
            wanted = attainment(deployment, traffic, before.plan.prefill, before.plan.decode)
        if served is None or wanted is None:
            continue
        requests += traffic.requests
        sums = [sums[0] + served * traffic.requests, sums[1] + wanted * traffic.requests]
    return (sums[0] / requests, sums[1] / requests) if requests else (None, None)


def _planner_lines(pools: Pools) -> Iterator[str]:
    yield f"planner: {pools.hours:.2f} h; the same pools {pools.agrees:.1%} of the time"
    yield f"  {'':<22}{'followed':>10}{'shadow':>10}{'difference':>32}"
    for name, before, after in (
        ("worker-hours", pools.followed_workers_h, pools.shadow_workers_h),
        ("GPU-hours", pools.followed_gpus_h, pools.shadow_gpus_h),
    ):
        yield f"  {name:<22}{before:>10.2f}{after:>10.2f}{after - before:>+32.2f}"
    if pools.followed_attainment is None or pools.shadow_attainment is None:
        yield "  no estimate of attainment: the log has no traffic with lengths"
        return
    before, after = pools.followed_attainment, pools.shadow_attainment
    yield f"  {'estimated attainment':<22}{before:>10.1%}{after:>10.1%}{(after - before) * 100:>+24.1f} points"


def _config(run: Run) -> Config:
    return parse(run.header["config"], "config in the log's header")
