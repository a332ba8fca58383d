"""``pdplugins explain``: what policies saw, what they decided and why, and whether they would decide the same again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pdplugins.config import DecisionLogConfig
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan
from pdplugins.errors import printable
from pdplugins.runtime.decision_reader import Entry, Run, read, reading
from pdplugins.runtime.records import WHOLE, cut
from pdplugins.runtime.telling import pools_text, told

SHOWN_IDS = 3
"""Ids of requests that are shown as examples of what a log has."""


@dataclass(frozen=True, slots=True)
class Choose:
    """Which decisions are shown."""

    every: bool = False
    """All that were kept; otherwise only changes and faults."""
    kinds: tuple[Kind, ...] = ()
    """Only these kinds; empty for all. Repetitions of a kind that is named here are left out."""
    request: str | None = None
    """Only decisions about the request with this id."""

    def entries(self, run: Run) -> Iterator[Entry]:
        """Yield the decisions of `run` to show."""
        changed = changes(run)
        for entry in run.entries:
            if self.kinds and entry.kind not in self.kinds:
                continue
            if self.request is not None:
                with reading(entry.where):
                    chosen = concerns(entry, cut(self.request))
                if chosen:
                    yield entry
            elif self.every or (self.kinds and entry.kind not in WHOLE) or id(entry) in changed:
                yield entry


def explain(path: Path, choose: Choose = Choose()) -> Iterator[str]:
    """Yield readable lines about each run of the log at `path`. Raises ConfigError for a line that is none of a log."""
    for number, run in enumerate(read(path), 1):
        with reading(run.where):
            lines = [_headline(number, run)]
            if choose.request is None and _cut(run):
                lines.append(f"{'start':>10}  no longer in the log; raise decision_log.most_mb to keep more")
            elif choose.request is None and run.initial is not None:
                lines.append(f"{'start':>10}  {pools_text(run.initial)}")
        yield from map(printable, lines)
        first_s = next((s for entry in run.entries if (s := _now_s(entry)) is not None), 0.0)
        for entry in choose.entries(run):
            with reading(entry.where):
                lines = list(_told(entry, first_s))
            yield from map(printable, lines)
        with reading(run.where):
            lines = [*_summary(run), *missing(run, choose)]
        yield from map(printable, lines)


def missing(run: Run, choose: Choose) -> Iterator[str]:
    """Say why `run` has no decision about the request that was asked for; nothing where it has one, or none was."""
    if choose.request is None or any(True for _ in choose.entries(run)):
        return
    chosen = [entry for entry in run.entries if not choose.kinds or entry.kind in choose.kinds]
    ids = list(dict.fromkeys(name for entry in chosen for name in _requests_of(entry)))
    others = {str(entry.kind) for entry in run.entries if cut(choose.request) in _requests_of(entry)}
    kept = DecisionLogConfig.model_validate(run.header["config"].get("decision_log", {}))
    intro = f"nothing here about request {choose.request}: "
    if others:
        yield f"{intro}it was decided about by {', '.join(sorted(others))}; leave out --kind"
    elif not ids:
        yield f"{intro}this log has no router, flow policy or batch scheduler that decided about a request"
    elif kept.sample > 1:
        yield (
            f"{intro}of such decisions the log keeps one in {kept.sample}, as of {', '.join(ids[:SHOWN_IDS])}; to keep "
            "all, put decision_log: {sample: 1} into the config (pdplugins simulate: --set decision_log.sample=1) and "
            "run again"
        )
    else:
        yield (
            f"{intro}ids are as in {', '.join(ids[:SHOWN_IDS])}; where clients are served, the log keeps at most "
            f"{kept.most_per_s} lines a second (decision_log.most_per_s)"
        )


def _requests_of(entry: Entry) -> list[str]:
    """Return the ids of the requests that a router, a flow policy or a batch scheduler decided about."""
    with reading(entry.where):
        answer = entry.answer or {}
        if entry.kind is Kind.ROUTER:
            return [str(entry.seen["request"]["id"])]
        if entry.kind is Kind.BATCH_SCHEDULER:
            return [str(name) for name in answer.get("prefill_tokens") or ()]
        return [name] if entry.kind is Kind.FLOW and (name := answer.get("request_id")) else []


def _told(entry: Entry, first_s: float) -> Iterator[str]:
    """Yield the lines about one decision."""
    when = entry.at[11:19] if entry.now_s is None else f"+{entry.now_s - first_s:.1f} s"
    first, others = told(entry)
    yield f"{when:>10}  {first}"
    for mark, text in others:
        yield f"{mark:>10}  {text}"


def _now_s(entry: Entry) -> float | None:
    with reading(entry.where):
        return None if entry.now_s is None else float(entry.now_s)


def as_data(path: Path, choose: Choose = Choose()) -> list[dict[str, Any]]:
    """Return the runs of the log at `path` as plain data. Raises ConfigError for a line that is none of a log.

    Where a request was asked for that a run has no decision about, ``missing`` says why.
    """
    return [_run_data(run, choose) for run in read(path)]


def _run_data(run: Run, choose: Choose) -> dict[str, Any]:
    data = {"header": _plain(dict(run.header), run.where), "decisions": [_entry_data(e) for e in choose.entries(run)]}
    with reading(run.where):
        why = list(missing(run, choose))
    return data | ({"missing": why[0]} if why else {})


def changes(run: Run) -> set[int]:
    """Return the identities of the entries that are shown without being asked for.

    Of planners and power controllers: what changed pools, caps or roles. Of all: refusals, and a fault that is not the
    fault of the decision of the same kind before.
    """
    with reading(run.where):
        initial = None if _cut(run) else run.initial
    before: dict[Kind, Any] = {} if initial is None else {Kind.PLANNER: (initial.prefill, initial.decode)}
    faults: dict[Kind, str | None] = {}
    changed = set()
    for entry in run.entries:
        with reading(entry.where):
            now = _essence(entry)
            refuses = entry.kind is Kind.FLOW and entry.answer.get("do") == "refuse"
        differs = entry.kind in WHOLE and now != before.get(entry.kind, now if _cut(run) else None)
        if differs or refuses or entry.fault != faults.get(entry.kind):
            changed.add(id(entry))
        before[entry.kind], faults[entry.kind] = now, entry.fault
    return changed


def _cut(run: Run) -> bool:
    """Return whether the log has no longer the beginning of a run, and so not what was there before its decisions."""
    return bool(run.header.get("continued"))


def concerns(entry: Entry, request: str) -> bool:
    """Tell whether a decision is about a request, named by its id as it is kept."""
    if entry.kind is Kind.ROUTER:
        return bool(entry.seen.get("request", {}).get("id") == request)
    if entry.kind is Kind.FLOW:
        head = (entry.seen.get("head") or {}).get("request", {})
        return request in (entry.answer.get("request_id"), head.get("id"))
    if entry.kind is Kind.BATCH_SCHEDULER:
        return request in ((entry.answer or {}).get("prefill_tokens") or {})
    return False


def _essence(entry: Entry) -> Any:
    """Return what of an answer counts as a change."""
    if isinstance(entry.answer, ScalePlan):
        return entry.answer.prefill, entry.answer.decode
    return entry.answer and (entry.answer.caps_w, entry.answer.flips) if entry.kind is Kind.POWER else None


def _entry_data(entry: Entry) -> dict[str, Any]:
    with reading(entry.where):
        data = asdict(entry)
        del data["where"]
        if entry.kind is Kind.PLANNER:
            view = None if entry.view is None else asdict(entry.view)
            answer = {"view": view, "plan": asdict(entry.plan)}
            data = {"at": entry.at, **answer, "fault": entry.fault, "step_s": entry.step_s}
    return _plain(data, entry.where)


def _plain(data: dict[str, Any], where: str) -> dict[str, Any]:
    """Return `data`. Raises ConfigError when it is nested too deeply to be written."""
    with reading(where):
        json.dumps(data, indent=1)
    return data


def _headline(number: int, run: Run) -> str:
    header, limits = run.header, run.header["deployment"]
    kinds = [kind for kind in Kind if run.kind(kind)] or [Kind.PLANNER]
    names = [f"{kind.replace('_', ' ')} {_name(header['config'], kind)}" for kind in kinds]
    return (
        f"run {number}, {header['at']}: {', '.join(names)} of pdplugins {header['pdplugins']}"
        f"{' in shadow' if header.get('shadow') else ''}; "
        f"{limits['gpu_budget']} GPUs, prefill TP {limits['prefill_tp']}, decode TP {limits['decode_tp']}; "
        f"TTFT {limits['slo']['ttft_s']:g} s, TPOT {limits['slo']['tpot_s']:g} s"
    )


def _name(config: Mapping[str, Any], kind: Kind) -> str:
    """Return the name of the plugin that decides."""
    choice = config.get(kind) or config.get("bundle")
    return choice["name"] if choice else "(the host's own)"


def _summary(run: Run) -> Iterator[str]:
    """Yield a line on each kind of policy; a log of a planner alone has no need of its name."""
    kinds = [kind for kind in Kind if run.kind(kind)]
    if not kinds or kinds == [Kind.PLANNER]:
        yield f"{len(run.entries)} decisions, {_faults(run.entries)} with a fault"
        return
    for kind in kinds:
        entries = run.kind(kind)
        of_all = "" if kind in WHOLE else f" of at least {entries[-1].number:,}"
        yield f"{kind}: {len(entries):,}{of_all} decisions, {_faults(entries)} with a fault"


def _faults(entries: Sequence[Entry]) -> int:
    return sum(entry.fault is not None for entry in entries)
