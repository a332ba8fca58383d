"""One answer of a policy, as the host follows it, and why it may not be the policy's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.signals import Signals


class Fault(StrEnum):
    """Why a decision is not the policy's own."""

    POLICY_ERROR = "policy_error"
    """The policy raised."""
    UNSAFE_ANSWER = "unsafe_answer"
    """The answer is not of the kind's type, or following it would harm."""
    UNKNOWN_WORKER = "unknown_worker"
    """The answer names a worker that takes no work."""
    OVER_BUDGET = "over_budget"
    """The answer needs more GPUs or watts than there are. Pools are cut to fit; caps are not followed."""
    BAD_METRICS = "bad_metrics"
    """The host's metrics are not numbers, or impossible ones."""
    STALE_METRICS = "stale_metrics"
    """The clock stands still, or traffic metrics have been missing for too long."""
    OBSERVATION = "observation"
    """The host could not read its own observations."""
    DECISION_LOG = "decision_log"
    """The decision was taken, but could not be logged."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """One answer of a safe policy."""

    kind: Kind
    answer: T
    """What the host follows."""
    fault: Fault | None = None
    """Why the answer is not the policy's own; None when it is."""
    step_s: float = 0.0
    """Seconds the policy took."""


class Journal(Protocol):
    """Where safe policies write what happened: decision log, metrics, counts. It never raises.

    What `seen` holds is passed as it is and turned into plain data only when it is kept. Names by kind:

    * planner: ``view`` (None when the host could not read its observations), ``before`` (the plan that held);
    * router: ``request``, ``workers``, ``now_s``, and ``placement`` when it is asked again after prefill;
    * flow: ``waiting`` (how many), ``head`` (the first `Waiting`), ``workers``, ``in_service``, ``now_s``;
    * batch scheduler: ``view``, ``now_s``;
    * power: ``gpus``, ``view``, ``budget_w`` (what all caps together may be).
    """

    def skips(self, kind: Kind, step_s: float) -> bool:
        """Count a decision without a fault and return True; False when it is to be kept, then pass it to `decided`.

        So a wrapper that decides thousands of times a second need not build a `Decision` and a `seen` for each one.
        """
        ...

    def decided(self, decision: Decision[Any], seen: Mapping[str, Any]) -> None:
        """Note a decision and what the policy saw. Where decisions are thousands a second, a sample is kept."""
        ...

    def fault(self, kind: Kind, fault: Fault, why: str, error: BaseException | None = None) -> None:
        """Count a fault, whether or not it changed a decision."""
        ...

    def signals(self, kind: Kind, signals: Signals) -> None:
        """Show the numbers that a part tells the others."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
