"""``pdplugins explain``: what a planner saw, what it decided and why, and whether it would decide the same again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pdplugins.config import parse
from pdplugins.contracts.planner import ScalePlan, Traffic
from pdplugins.contracts.workers import Pool
from pdplugins.registry import Registry
from pdplugins.runtime.assembly import build_deployment, build_planner
from pdplugins.runtime.decision_log import Entry, Run, read
from pdplugins.runtime.planner import SafePlanner


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that did not come out the same again."""

    number: int
    logged: ScalePlan
    now: ScalePlan


def explain(path: Path, *, every: bool = False) -> Iterator[str]:
    """Yield readable lines about each run of the log at `path`; only changes unless `every`."""
    for number, run in enumerate(read(path), 1):
        yield _headline(number, run)
        yield f"{'start':>10}  {_pools(run.initial)}"
        first_s = next((entry.view.now_s for entry in run.entries if entry.view), 0.0)
        for entry in run.entries if every else changes(run):
            when = f"+{entry.view.now_s - first_s:.1f} s" if entry.view else entry.at[11:19]
            yield f"{when:>10}  {_pools(entry.plan)}  {entry.plan.reason}"
            if entry.view is not None:
                yield f"{'saw':>10}  {_traffic(entry.view.traffic)}"
                yield f"{'':>10}  {_pool('prefill', entry.view.prefill)}; {_pool('decode', entry.view.decode)}"
        yield f"{len(run.entries)} decisions, {sum(entry.fault is not None for entry in run.entries)} with a fault"


def as_data(path: Path, *, every: bool = False) -> list[dict[str, Any]]:
    """Return the runs of the log at `path` as plain data; only changes unless `every`."""
    return [
        {"header": dict(run.header), "decisions": [asdict(e) for e in (run.entries if every else changes(run))]}
        for run in read(path)
    ]


def changes(run: Run) -> Iterator[Entry]:
    """Yield the decisions that changed the pools, or that met another fault than the one before."""
    pools, fault = (run.initial.prefill, run.initial.decode), None
    for entry in run.entries:
        if (entry.plan.prefill, entry.plan.decode) != pools or entry.fault != fault:
            yield entry
        pools, fault = (entry.plan.prefill, entry.plan.decode), entry.fault


def verify(run: Run, registry: Registry | None = None) -> Difference | None:
    """Replay the views of `run` through a planner built from its header; return the first decision that differs.

    Where the door could not read what the host said there is no view; then only the pools are compared.
    """
    config = parse(run.header["config"], "config in the log's header", registry)
    deployment = build_deployment(config, registry)
    planner = SafePlanner(build_planner(config, deployment, registry), deployment, initial=run.initial)
    for number, entry in enumerate(run.entries, 1):
        if entry.view is None:
            now = ScalePlan(planner.last.prefill, planner.last.decode, entry.plan.reason, entry.plan.signals)
        else:
            now = planner.decide(entry.view).answer
        if json.dumps(asdict(now)) != json.dumps(asdict(entry.plan)):  # as text, NaN equals itself
            return Difference(number, entry.plan, now)
    return None


def verified(path: Path) -> tuple[bool, list[str]]:
    """Replay every run of the log at `path`; return whether all came out the same, and what to print."""
    lines = []
    for number, run in enumerate(read(path), 1):
        if (difference := verify(run)) is not None:
            by = run.header["pdplugins"]
            lines.append(f"run {number}, decision {difference.number}, logged by pdplugins {by}, differs now:")
            lines.append(f"  logged {_pools(difference.logged)}  {difference.logged.reason}")
            lines.append(f"  now    {_pools(difference.now)}  {difference.now.reason}")
            return False, lines
        lines.append(f"run {number}: {len(run.entries)} decisions, the same again")
    return True, lines


def _headline(number: int, run: Run) -> str:
    header, limits = run.header, run.header["deployment"]
    return (
        f"run {number}, {header['at']}: planner {header['planner']} of pdplugins {header['pdplugins']}; "
        f"{limits['gpu_budget']} GPUs, prefill TP {limits['prefill_tp']}, decode TP {limits['decode_tp']}; "
        f"TTFT {limits['slo']['ttft_s']:g} s, TPOT {limits['slo']['tpot_s']:g} s"
    )


def _pools(plan: ScalePlan) -> str:
    return f"{plan.prefill}P {plan.decode}D"


def _traffic(traffic: Traffic | None) -> str:
    if traffic is None:
        return "no traffic metrics"
    parts = [f"{traffic.rate:.2f} requests/s in {traffic.window_s:.0f} s"]
    for name, value, form in (
        ("ISL", traffic.isl_tokens, "{:.0f}"),
        ("OSL", traffic.osl_tokens, "{:.0f}"),
        ("TTFT", traffic.ttft_s, "{:.3f} s"),
        ("TPOT", traffic.tpot_s, "{:.4f} s"),
    ):
        if value is not None:
            parts.append(f"{name} {form.format(value)}")
    return ", ".join(parts)


def _pool(role: str, pool: Pool) -> str:
    moving = [f"{n} {name}" for name, n in (("starting", pool.starting), ("draining", pool.draining)) if n]
    queue = f"{pool.queued_requests:.0f} queued ({pool.queued_tokens:.0f} tokens), {pool.running_requests:.0f} running"
    return f"{role} {', '.join([f'{pool.ready} ready', *moving])}, {queue}"
