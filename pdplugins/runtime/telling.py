"""One decision in words: a first line of what was decided and why, then what was seen, as (mark, text)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan, Traffic
from pdplugins.contracts.power import GpuView, PowerPlan
from pdplugins.contracts.workers import Pool
from pdplugins.runtime.decision_reader import Entry

EXPECTED, UNCHANGED = "expected_attainment", "expected_attainment_unchanged"
"""Signals of planners: the attainment that they expect with their plan, and with the pools before."""

Told = tuple[str, list[tuple[str, str]]]


def told(entry: Entry) -> Told:
    """Return what `entry` decided and why, and what it saw."""
    return _TELL[entry.kind](entry)


def pools_text(plan: ScalePlan) -> str:
    """Return the pools of a plan, ``3P 2D``."""
    return f"{plan.prefill}P {plan.decode}D"


def _planner(entry: Entry) -> Told:
    first = f"{pools_text(entry.plan)}  {entry.plan.reason}"
    if (view := entry.view) is None:
        return first, []
    pools = f"{_pool('prefill', view.prefill)}; {_pool('decode', view.decode)}"
    return first, [*_worth(entry.plan), ("saw", _traffic(view.traffic)), ("", pools)]


def _worth(plan: ScalePlan) -> list[tuple[str, str]]:
    """Tell what a change of the pools was expected to be worth, where the planner says that."""
    expected, unchanged = (plan.signals.get(name) for name in (EXPECTED, UNCHANGED))
    if expected is None or unchanged is None or expected == unchanged:
        return []
    return [("worth", f"{expected:.1%} of the requests expected inside the SLO, {unchanged:.1%} without the change")]


def _router(entry: Entry) -> Told:
    request, answer = entry.seen.get("request", {}), entry.answer or {}
    again = "again, " if "placement" in entry.seen else ""
    first, second, split = answer.get("first"), answer.get("second"), answer.get("split")
    where = f"{first}" if first == second else f"{first} → {second or 'open'}, split {split}"
    workers = [("", _worker(worker, (first, second))) for worker in entry.seen.get("workers", ())]
    return f"router  {again}{request.get('id')} → {where}{_why(entry)}", [
        ("saw", _request(request, entry.now_s)),
        *workers,
    ]


def _flow(entry: Entry) -> Told:
    answer = entry.answer or {}
    does = answer.get("do", "?")
    text = f"flow  {does} {answer.get('request_id', '')}".rstrip()
    if does == "refuse":
        text += f", retry after {answer.get('retry_after_s', 0):g} s"
    if answer.get("until_s") is not None:
        text += f" until {answer['until_s']:.3f} s"
    seen = [f"{entry.seen['waiting']} waiting"] if "waiting" in entry.seen else []
    if entry.seen.get("in_service") is not None:
        seen.append(f"{entry.seen['in_service']} in service")
    if head := entry.seen.get("head"):
        waited = "" if entry.now_s is None else f" for {entry.now_s - head['since_s']:.3f} s"
        seen.append(f"first {head['request']['id']}{waited}, due at {head['due_s']:.3f} s")
    return f"{text}{_why(entry)}", [("saw", ", ".join(seen) or "nothing")]


def _batch(entry: Entry) -> Told:
    view = entry.seen.get("view") or {}
    seen = (
        f"{view.get('queue', 0)} queued ({view.get('queued_tokens', 0)} tokens), "
        f"{view.get('decode_requests', 0)} decode ({view.get('decode_context_tokens', 0)} tokens of context)"
    )
    if "own_tpot_s" in view:
        seen += f", tightest own TPOT {view['own_tpot_s']:g} s"
    if entry.answer is None:
        return f"batch scheduler  none, the engine goes its own way{_why(entry)}", [("saw", seen)]
    tokens = entry.answer.get("prefill_tokens") or {}
    chunks = ", ".join(f"{name} {count}" for name, count in list(tokens.items())[:8]) or "decode only"
    more = f" and {len(tokens) - 8} more" if len(tokens) > 8 else ""
    wait = f", may wait {entry.answer['wait_s']:g} s" if entry.answer.get("wait_s") else ""
    return f"batch scheduler  prefill {chunks}{more}{wait}{_why(entry)}", [("saw", seen)]


def _power(entry: Entry) -> Told:
    plan, gpus = entry.answer, entry.seen["gpus"]
    caps = [("", _gpu(gpu, plan)) for gpu in gpus]
    if plan is None:
        return f"power  caps and roles stay{_why(entry)}", caps
    flips = "".join(f", GPU {flip.gpu} becomes {flip.role}" for flip in plan.flips)
    changed = sum(plan.caps_w.get(gpu.index, gpu.cap_w) != gpu.cap_w for gpu in gpus)
    return f"power  {changed} caps change{flips}  {plan.reason}{_fault(entry)}", caps


_TELL = {
    Kind.PLANNER: _planner,
    Kind.ROUTER: _router,
    Kind.FLOW: _flow,
    Kind.BATCH_SCHEDULER: _batch,
    Kind.POWER: _power,
}


def _why(entry: Entry) -> str:
    reason = (entry.answer or {}).get("reason")
    return (f"  {reason}" if reason else "") + _fault(entry)


def _fault(entry: Entry) -> str:
    return f"  [{entry.fault}]" if entry.fault else ""


def _gpu(gpu: GpuView, plan: PowerPlan | None) -> str:
    cap_w = gpu.cap_w if plan is None else plan.caps_w.get(gpu.index, gpu.cap_w)
    change = f" → {cap_w:.0f} W" if cap_w != gpu.cap_w else ""
    return f"GPU {gpu.index} {gpu.role}, draws {gpu.draw_w:.0f} W, cap {gpu.cap_w:.0f} W{change}"


def _request(request: Mapping[str, Any], now_s: float | None) -> str:
    parts = [f"prompt {request.get('prompt_tokens')} tokens"]
    if now_s is not None and "arrival_s" in request:
        parts.append(f"waited {now_s - request['arrival_s']:.3f} s")
    if request.get("history_tokens"):
        parts.append(f"{request['history_tokens']} of them history")
    if request.get("session"):
        parts.append(f"session {request['session']} on {request.get('bound_worker', 'no worker')}")
    if request.get("predicted_output_tokens") is not None:
        parts.append(f"output predicted {request['predicted_output_tokens']}")
    return ", ".join(parts)


def _worker(worker: Mapping[str, Any], chosen: tuple[str | None, str | None]) -> str:
    load = worker.get("load", {})
    mark = "*" if worker["id"] in chosen else " "
    parts = [
        f"{load.get('queued_requests', 0):.0f} queued ({load.get('queued_tokens', 0):.0f} tokens)",
        f"{load.get('running_requests', 0):.0f} running ({load.get('running_tokens', 0):.0f} tokens)",
    ]
    if load.get("recent_tbt_s") is not None:
        parts.append(f"TBT {load['recent_tbt_s'] * 1e3:.1f} ms")
    if worker.get("free_kv_tokens") is not None:
        parts.append(f"{worker['free_kv_tokens']} KV tokens free")
    if worker.get("cached_blocks"):
        parts.append(f"{worker['cached_blocks']} blocks cached")
    return f"{mark} {worker['id']} {worker['role']}: {', '.join(parts)}"


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
