"""Replays a decision log: would the policies decide the same again?

Planners and power controllers can be replayed, since every one of their decisions is kept. Of the other kinds only a
sample is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pdplugins.config import parse
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan
from pdplugins.errors import ConfigError
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.decision_reader import Entry, Run, read, reading
from pdplugins.runtime.planner import SafePlanner
from pdplugins.runtime.policies import Policies, build_policies
from pdplugins.runtime.power import SafePowerController
from pdplugins.runtime.records import WHOLE
from pdplugins.runtime.telling import told


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision of a kind that did not come out the same again."""

    logged: Entry
    now: Entry


def verified(path: Path) -> tuple[bool, list[str]]:
    """Replay every run of the log at `path`; return whether all came out the same, and what to print."""
    lines = []
    for number, run in enumerate(read(path), 1):
        for kind in [kind for kind in Kind if run.kind(kind)] or [Kind.PLANNER]:
            entries = run.kind(kind)
            name = f"run {number}" if kind is Kind.PLANNER else f"run {number}, {kind}"
            if (why := _not_replayable(kind, entries)) is not None:
                lines.append(f"{name}: not verified, {why}")
            elif (difference := verify(run, kind)) is None:
                lines.append(f"{name}: {len(entries)} decisions, the same again")
            else:
                with reading(difference.logged.where):
                    return False, [*lines, *_differs(name, run, difference)]
    return True, lines


def verify(run: Run, kind: Kind = Kind.PLANNER) -> Difference | None:
    """Replay what one kind of policy saw through a policy built from the run's header; return the first difference."""
    with reading(run.where):
        config = parse(run.header["config"], "config in the log's header")
        deployment = build_deployment(config)
        replayed = _REPLAY[kind](run, build_policies(config, deployment), deployment)
        for entry in run.kind(kind):
            with reading(entry.where):
                answer = next(replayed)
                if _text(answer) != _text(entry.answer):
                    return Difference(entry, replace(entry, answer=answer))
    return None


def _planner(run: Run, policies: Policies, deployment: Deployment) -> Iterator[Any]:
    """Yield what the planner answers now to what it saw at each decision.

    There is no view when the host could not read its observations; then only the pools are compared.
    """
    policy = policies.planner()
    if policy is None or run.initial is None:
        raise ConfigError("the log's header has no planner or no pools at start; it cannot be replayed")
    planner = SafePlanner(policy, deployment, initial=run.initial)
    for entry in run.kind(Kind.PLANNER):
        if entry.view is None:
            last = planner.last
            yield ScalePlan(last.prefill, last.decode, entry.plan.reason, entry.plan.signals)
        else:
            yield planner.plan(entry.view)


def _power(run: Run, policies: Policies, deployment: Deployment) -> Iterator[Any]:
    """Yield what the power controller answers now to what it saw at each decision."""
    entries = run.kind(Kind.POWER)
    if (policy := policies.power()) is None:
        raise ConfigError("the log's header has no power controller; it cannot be replayed")
    controller = SafePowerController(policy, deployment, budget_w=entries[0].seen["budget_w"])
    for entry in entries:
        yield None if entry.view is None else controller.control(entry.seen["gpus"], entry.view)


_REPLAY = {Kind.PLANNER: _planner, Kind.POWER: _power}


def _not_replayable(kind: Kind, entries: Sequence[Entry]) -> str | None:
    """Return why the decisions of one kind cannot be replayed; None when they can."""
    if kind not in WHOLE:
        return "only a sample of its decisions is kept"
    for expected, entry in enumerate(entries, 1):
        if entry.number != expected:
            return f"decision {expected} is not in the log"
    return None


def _text(answer: Any) -> str:
    """Return an answer as text, in which NaN equals itself."""
    return json.dumps(None if answer is None else asdict(answer))


def _differs(name: str, run: Run, difference: Difference) -> Iterator[str]:
    by = run.header["pdplugins"]
    yield f"{name}, decision {difference.logged.number}, logged by pdplugins {by}, differs now:"
    yield f"  logged {told(difference.logged)[0]}"
    yield f"  now    {told(difference.now)[0]}"
