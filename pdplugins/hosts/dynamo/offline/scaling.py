"""Door (d): one of our planners as ``scaling_policy`` of Dynamo's offline replay.

.. code-block:: python

    from dynamo._core import run_mocker_trace_replay
    run_mocker_trace_replay([trace], …, scaling_policy=OfflineScaling(build_safe_planner(config)))

Dynamo calls ``initial_tick_ms()`` once and ``on_tick(snapshot)`` at every tick, on its virtual clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.workers import Pool, Role, WorkerLoad
from pdplugins.errors import HostError
from pdplugins.hosts.dynamo.loads import from_snapshot, worker_load
from pdplugins.results import Scaling
from pdplugins.runtime.planner import SafePlanner

Snapshot = Mapping[str, Any]
Targets = dict[str, Any]
AT_ONCE_MS = 1.0
"""The earliest tick."""
MEANS = {
    "shape_count": ("avg_isl", "avg_osl"),
    "ttft_count": ("avg_ttft_ms",),
    "itl_count": ("avg_itl_ms",),
    "hit_rate_count": ("avg_kv_hit_rate",),
}
"""What a window of Dynamo's counts, and the means over it."""


class ScalingPolicy(Protocol):
    """What Dynamo's replay calls."""

    def initial_tick_ms(self) -> float:
        """Return the time of the first tick."""
        ...

    def on_tick(self, snapshot: Snapshot) -> Targets:
        """Return ``target_prefill`` and ``target_decode`` (None: unchanged) and ``next_tick_ms`` (None: no more)."""
        ...


class OfflineScaling:
    """A safe planner in the loop of Dynamo's replay. One object per run."""

    def __init__(self, planner: SafePlanner) -> None:
        self._planner = planner
        self._asked_s = 0.0
        self._windows: list[Snapshot] = []
        """The traffic that it was not asked about yet."""
        self._loads: dict[Role, dict[str, WorkerLoad]] = {Role.PREFILL: {}, Role.DECODE: {}}
        self.reason = ""
        """Why the last targets were given."""

    @property
    def counts(self) -> dict[str, int]:
        """What a result says of the planner: its faults, where it had any."""
        faults = self._planner.faults.total()
        return {f"faults.{Kind.PLANNER}": faults} if faults else {}

    def initial_tick_ms(self) -> float:
        """Return the time of the first look: one planner interval after the start, or earlier where it is eager."""
        pools = Pool(self._planner.last.prefill), Pool(self._planner.last.decode)
        wait_s = self._planner.wait_s(PlannerView(0.0, None, *pools))
        return max(min(wait_s, self._planner.interval_s) * 1e3, AT_ONCE_MS)

    def on_tick(self, snapshot: Snapshot) -> Targets:
        """Answer one tick. A snapshot that cannot be read holds the last good plan."""
        now_s = snapshot["now_ms"] / 1e3
        due_s = self._asked_s + self._planner.interval_s
        try:
            view = self.view(snapshot)
            early = self._planner.eager and now_s < due_s - AT_ONCE_MS / 1e3
            if early and (wait_s := self._planner.wait_s(view)):
                self._windows = self._since(snapshot)
                next_s = min(now_s + wait_s, due_s)
                return {"target_prefill": None, "target_decode": None, "next_tick_ms": next_s * 1e3}
        except (KeyError, TypeError, ValueError) as error:
            decision = self._planner.hold(f"replay snapshot: {type(error).__name__}: {error}", error)
        else:
            decision = self._planner.decide(view)
        self.reason = decision.answer.reason
        self._asked_s, self._windows = now_s, []
        return {
            "target_prefill": decision.answer.prefill,
            "target_decode": decision.answer.decode,
            "next_tick_ms": snapshot["now_ms"] + self._planner.interval_s * 1e3,
        }

    def view(self, snapshot: Snapshot) -> PlannerView:
        """Return what the snapshot says, with the traffic since the planner was asked.

        Remembers the load that a worker reported last, as Dynamo's planner does.
        """
        return PlannerView(
            now_s=snapshot["now_ms"] / 1e3,
            traffic=_read(together(windows)) if (windows := self._since(snapshot)) else None,
            prefill=self._pool(Role.PREFILL, snapshot),
            decode=self._pool(Role.DECODE, snapshot),
        )

    def _since(self, snapshot: Snapshot) -> list[Snapshot]:
        window = snapshot.get("traffic")
        return [*self._windows, *([window] if window and window["duration_s"] > 0 else [])]

    def _pool(self, role: Role, snapshot: Snapshot) -> Pool:
        active = [str(worker) for worker in snapshot[f"active_{role}_ids"]]
        rows = snapshot.get(f"{role}_fpm_snapshots", ())
        reported = (worker_load(role, str(row["worker_id"]), from_snapshot(row)) for row in rows)
        seen = self._loads[role] | {load.worker: load for load in reported}
        self._loads[role] = {worker: seen[worker] for worker in active if worker in seen}
        return Pool(
            ready=snapshot[f"active_{role}_count"],
            starting=snapshot[f"starting_{role}_count"],
            draining=snapshot[f"draining_{role}_count"],
            loads=tuple(self._loads[role].values()),
        )


def together(windows: Sequence[Snapshot]) -> Snapshot:
    """Return what was seen in all of `windows`, of which there is at least one."""
    if len(windows) == 1:
        return windows[0]
    whole: dict[str, float] = {}
    for window in windows:
        for name in ("duration_s", "num_req"):
            whole[name] = whole.get(name, 0.0) + window[name]
        for count, means in MEANS.items():
            before, new = whole.get(count, 0), window.get(count, 0)
            whole[count] = before + new
            for mean in means:
                total = before * whole.get(mean, 0.0) + (new * window[mean] if new else 0.0)
                whole[mean] = total / whole[count] if whole[count] else 0.0
    return whole


def _read(window: Snapshot) -> Traffic:
    """Read a window. Means over no sample come as 0 and are unknown.

    ``num_req`` counts arrivals; the mean lengths are those of the requests that finished (``shape_count``), which lag
    behind when there is a queue.
    """
    finished, first_tokens, decoded = (window[f"{name}_count"] > 0 for name in ("shape", "ttft", "itl"))
    return Traffic(
        window_s=window["duration_s"],
        requests=float(window["num_req"]),
        isl_tokens=window["avg_isl"] if finished else None,
        osl_tokens=window["avg_osl"] if finished else None,
        ttft_s=window["avg_ttft_ms"] / 1e3 if first_tokens else None,
        tpot_s=window["avg_itl_ms"] / 1e3 if decoded else None,
        isl_sq_tokens=None,  # the window has means only
        local_share=None,  # decode workers of the replay never prefill
        prefix_hit_rate=window["avg_kv_hit_rate"] if window.get("hit_rate_count", 0) > 0 else None,
    )


class Fixed:
    """Pools that never change. Ticks only so that the run can show progress and be interrupted."""

    TICK_MS = 5000.0

    def initial_tick_ms(self) -> float:
        """Return the time of the first tick."""
        return self.TICK_MS

    def on_tick(self, snapshot: Snapshot) -> Targets:
        """Change nothing."""
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": snapshot["now_ms"] + self.TICK_MS}


class Watched:
    """Passes ticks on to a policy; keeps what it changed and tells the virtual time to `progress`.

    :param until_s: virtual time in seconds from which a tick raises HostError, for a replay that never ends.
    """

    def __init__(
        self, policy: ScalingPolicy, progress: Callable[[float], None] | None = None, until_s: float = math.inf
    ) -> None:
        self._policy = policy
        self._progress = progress
        self._until_s = until_s
        self._changes: list[Scaling] = []

    @property
    def changes(self) -> Sequence[Scaling]:
        """Every change of the pools that was asked for, in order."""
        return self._changes

    def initial_tick_ms(self) -> float:
        """Return the time of the first tick."""
        return self._policy.initial_tick_ms()

    def on_tick(self, snapshot: Snapshot) -> Targets:
        """Answer one tick."""
        if snapshot["now_ms"] / 1e3 > self._until_s:
            raise HostError(
                "replay: days after the last request Dynamo's replay has not ended, so it has lost one; run it again, "
                "or with --router round_robin"
            )
        targets = self._policy.on_tick(snapshot)
        pools = snapshot["non_draining_prefill_count"], snapshot["non_draining_decode_count"]
        wanted = tuple(
            now if target is None else target
            for now, target in zip(pools, (targets["target_prefill"], targets["target_decode"]), strict=True)
        )
        if wanted != pools:
            reason = getattr(self._policy, "reason", "")
            self._changes.append(
                Scaling(at_s=snapshot["now_ms"] / 1e3, prefill=wanted[0], decode=wanted[1], reason=reason)
            )
        if self._progress is not None:
            self._progress(snapshot["now_ms"] / 1e3)
        return targets
