"""The journal that hosts give to safe policies: decision log, metrics and counts, for all kinds in one process.

Every decision of planners and power controllers is kept. Routers, flow policies and batch schedulers decide up to
thousands of times a second, so of theirs one in `Sampling.every` is kept, and besides every refusal and every fault,
but no more than `Sampling.most_per_s` lines a second. A decision that is not kept is counted, at a cost below a
microsecond.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdplugins.config import Config, with_defaults
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Refuse
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan
from pdplugins.registry import Registry
from pdplugins.runtime.decision import Decision, Fault
from pdplugins.runtime.decision_log import DecisionLog
from pdplugins.runtime.faults import one_line
from pdplugins.runtime.metrics import Metrics
from pdplugins.runtime.records import WHOLE

log = logging.getLogger("pdplugins.journal")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which decisions are kept of the kinds that decide thousands of times a second."""

    every: int = 100
    """Keep one decision in this many; 1 keeps all that `most_per_s` allows."""
    most_per_s: int = 50
    """Lines a second, over these kinds together."""


class _Tally:
    """The decisions of one kind."""

    __slots__ = ("decisions", "every", "left", "metrics")

    def __init__(self, every: int, metrics: Metrics | None) -> None:
        self.decisions = 0
        self.every = every
        self.left = every
        """Decisions until the next one that is kept, itself included."""
        self.metrics = metrics


class StandardJournal:
    """Writes to a decision log and to metrics, where they are given. Never raises. For one thread.

    :param metrics: those of the kinds that decide in this process.
    :param clock: seconds, for `Sampling.most_per_s`.
    """

    def __init__(
        self,
        decision_log: DecisionLog | None = None,
        metrics: Iterable[Metrics] = (),
        *,
        sampling: Sampling = Sampling(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = decision_log
        self._most_per_s = sampling.most_per_s
        self._clock = clock
        self._second = -1
        self._kept_in_second = 0
        self.faults: Counter[tuple[Kind, Fault]] = Counter()
        by_kind = {each.kind: each for each in metrics}
        often = sampling.every if decision_log is not None else sys.maxsize
        self._tallies = {kind: _Tally(1 if kind in WHOLE else often, by_kind.get(kind)) for kind in Kind}

    def skips(self, kind: Kind, step_s: float) -> bool:
        """Count a decision without a fault and return True; False when it is to be kept, then pass it to `decided`."""
        tally = self._tallies[kind]
        if tally.left <= 1:
            return False
        tally.left -= 1
        tally.decisions += 1
        if tally.metrics is not None:
            tally.metrics.decided(step_s)
        return True

    def decided(self, decision: Decision[Any], seen: Mapping[str, Any]) -> None:
        """Count a decision, show it in the metrics, and log it if it is one to keep."""
        tally = self._tallies[decision.kind]
        tally.decisions += 1
        tally.left -= 1
        try:
            self._measure(tally, decision, seen)
            if self._log is not None and self._keeps(tally, decision):
                self._log.write(decision, seen, tally.decisions)
        except Exception as error:  # a full disk or an odd object in what was seen; the decision stands all the same
            self._unwritten(decision.kind, error)

    def fault(self, kind: Kind, fault: Fault, why: str, error: BaseException | None = None) -> None:
        """Count a fault. The policy's safe wrapper logs it."""
        self.faults[kind, fault] += 1
        if (metrics := self._tallies[kind].metrics) is not None:
            metrics.fault(fault)

    def signals(self, kind: Kind, signals: Mapping[str, float]) -> None:
        """Show the numbers that a part tells the others."""
        if (metrics := self._tallies[kind].metrics) is not None:
            metrics.signals(signals)

    def decisions(self, kind: Kind) -> int:
        """Return how many decisions there were, kept or not."""
        return self._tallies[kind].decisions

    def begin(self, config: Config, deployment: Deployment) -> None:
        """Begin another run in the log: the policies have been built anew from `config`.

        Only the power daemon builds anew, so what cannot be written counts as a fault of its kind.
        """
        if self._log is None:
            return
        try:
            self._log.begin(_with_defaults(config, None), deployment)
        except OSError as error:  # a full disk; the run begins in the log with its next decision
            self._unwritten(Kind.POWER, error)
        except Exception as error:  # an odd object in the settings; the log goes on with the run before
            self._unwritten(Kind.POWER, error)
            return
        for tally in self._tallies.values():
            tally.decisions = 0

    def close(self) -> None:
        """Close the decision log."""
        if self._log is not None:
            self._log.close()

    def _measure(self, tally: _Tally, decision: Decision[Any], seen: Mapping[str, Any]) -> None:
        if tally.metrics is None:
            return
        tally.metrics.decided(decision.step_s)
        if isinstance(decision.answer, ScalePlan):
            tally.metrics.scaled(decision.answer, seen.get("before"), seen.get("view"))

    def _keeps(self, tally: _Tally, decision: Decision[Any]) -> bool:
        if decision.kind in WHOLE:
            return True
        due = tally.left <= 0
        if due:
            tally.left = tally.every
        if not due and decision.fault is None and not isinstance(decision.answer, Refuse):
            return False
        second = int(self._clock())
        if second != self._second:
            self._second, self._kept_in_second = second, 0
        self._kept_in_second += 1
        return self._kept_in_second <= self._most_per_s

    def _unwritten(self, kind: Kind, error: Exception) -> None:
        why = f"{type(error).__name__}: {one_line(error)}"
        self.fault(kind, Fault.DECISION_LOG, why)
        if sum(self.faults[each, Fault.DECISION_LOG] for each in Kind) == 1:
            log.warning("decision log not written (%s); further errors are only counted", why)


def build_journal(
    config: Config,
    deployment: Deployment,
    registry: Registry | None = None,
    *,
    initial: ScalePlan | None = None,
    decision_log: Path | None = None,
    metrics: Iterable[Metrics] = (),
    capped: bool = True,
    shadow: bool = False,
) -> StandardJournal:
    """Build the journal of one process. Raises ConfigError when the decision log cannot be written.

    :param initial: the planner's plan before its first decision, where this process has a planner.
    :param decision_log: where to log decisions, None for nowhere. One process writes one file.
    :param capped: keep no more than ``decision_log.most_per_s`` lines a second; a simulation has no need of that.
    :param shadow: nobody follows what the policies of this process decide.
    """
    wanted, metrics = config.decision_log, [*metrics]
    for each in metrics:
        each.shadow = shadow
    log = None
    if decision_log is not None:
        whole = _with_defaults(config, registry)
        log = DecisionLog(decision_log, whole, deployment, initial, most_bytes=wanted.most_mb * 2**20, shadow=shadow)
    return StandardJournal(log, metrics, sampling=Sampling(wanted.sample, wanted.most_per_s if capped else sys.maxsize))


def _with_defaults(config: Config, registry: Registry | None) -> Config:
    """Fill in the defaults of all choices, so that a log replays the same when a later version has others."""
    whole = {key: with_defaults(config, key, choice, registry) for key, choice in config.chosen.items()}
    return config.model_copy(update=whole)
