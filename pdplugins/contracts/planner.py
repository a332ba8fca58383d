"""Planners decide how many workers of each role there should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pdplugins.contracts.workers import Pool


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic since the planner was last asked, and the latencies that clients saw."""

    window_s: float
    """Seconds that these numbers cover."""
    requests: float
    """Requests that arrived in the window."""
    isl_tokens: float | None = None
    """Mean input sequence length; None when no request gives one."""
    osl_tokens: float | None = None
    """Mean output sequence length; None when no request finished."""
    ttft_s: float | None = None
    """Mean time to first token; None when there was none, or the host does not see it."""
    tpot_s: float | None = None
    """Mean time per output token after the first; None likewise."""
    isl_sq_tokens: float | None = None
    """Mean of the square of the input sequence length; with `isl_tokens` it gives the variance."""
    local_share: float | None = None
    """Share of the requests that finished on the worker that prefilled them, 0 to 1."""
    prefix_hit_rate: float | None = None
    """Share of the prompt tokens that were already in a KV cache, 0 to 1."""
    local_prefill_tokens: float | None = None
    """Mean prompt tokens, without cached ones, of the requests in `local_share`; None when there are none."""

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.window_s if self.window_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PlannerView:
    """Everything a planner may use for one decision."""

    now_s: float
    """The host's clock. It never goes back, and where it begins means nothing."""
    traffic: Traffic | None
    """None where the host has no metrics of this window."""
    prefill: Pool
    """The workers whose role is prefill."""
    decode: Pool
    """Those whose role is decode."""


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """How many workers of each role there should be. Hosts cut a plan that needs more GPUs than the budget."""

    prefill: int
    """Workers; at least one, unless workers of the other role do both phases (`Deployment.any_role`)."""
    decode: int
    """Likewise."""
    reason: str
    """One readable line for the log: what the planner saw, and what follows from it."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """Named numbers behind the decision, such as forecasts and utilisations. Hosts show them and export them."""


class Planner(Protocol):
    """Decides how many workers of each role there should be. Hosts call it at intervals.

    While it raises, or answers with what cannot be followed, the last good plan holds.
    """

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""
        ...

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools wanted from now on. It may keep state, but must be a pure function of all views so far."""
        ...


@runtime_checkable
class Eager(Protocol):
    """A planner that may want to be asked before its interval is over, as at a cold start. Not every host does that."""

    def wait_s(self, view: PlannerView) -> float | None:
        """Return after how many seconds the host should look again: 0 to be asked now, None not before the next tick.

        The traffic in `view` is all that came since the planner was last asked, or the host started; None when nothing
        can have come yet. It must not change what the planner answers later: hosts look as often as they can.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """A planner that can go on with what it learned in an earlier run."""

    def state(self) -> Mapping[str, Any]:
        """Return what it learned, as plain data for JSON."""
        ...

    def resume(self, state: Any, age_s: float) -> None:
        """Begin with what an earlier run learned. Raises ValueError when `state` is no such; then nothing has changed.

        :param age_s: seconds since it was kept.
        """
        ...
