"""One tick of Dynamo's planner in, one safe decision out: what the doors inside Dynamo and over gRPC share."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdplugins.config import Config
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import ScalePlan, Traffic
from pdplugins.hosts.dynamo.doors.frontend import FrontendMetrics
from pdplugins.hosts.dynamo.doors.observe import NEEDS, NEEDS_TRAFFIC, context_traffic, planner_view, tick_time_s
from pdplugins.hosts.dynamo.fetching import in_thread
from pdplugins.runtime import signals
from pdplugins.runtime.decision import Decision
from pdplugins.runtime.faults import one_line
from pdplugins.runtime.metrics import process_metrics
from pdplugins.runtime.planner import SafePlanner, build_safe_planner
from pdplugins.runtime.signals import SignalBoard

log = logging.getLogger("pdplugins.dynamo")

LEAST_STEP_S = 1e-3
"""From one tick to the next where the host's clock was set back in between."""
CADENCE_TOLERANCE = 0.25
"""How far, relative to the planner's interval, the time between two ticks may be off before a warning."""


def door_planner(config: Config, decision_log: Path | None, *, shadow: bool, state: Path | None = None) -> SafePlanner:
    """Build the planner of a door, with the metrics of this process. Raises ConfigError.

    :param shadow: nobody follows it, and its log says so.
    :param state: where what it learned is kept for the next run.
    """
    metrics = process_metrics(Kind.PLANNER)
    return build_safe_planner(config, decision_log=decision_log, metrics=metrics, shadow=shadow, state=state)


class Proposer:
    """Answers Dynamo's PROPOSE stage from a safe planner. Never raises.

    :param frontend: where to read traffic, TTFT and TPOT; the plugin context has no TTFT, and its traffic needs a
        Prometheus server.
    :param board: carries signals between the planner and the other parts of its bundle; None: nobody listens.
    :param shadow: decide and log, and leave Dynamo its own behaviour.
    :param launched: the pools of the config have been started, so that workers which are missing at first are coming.
    """

    def __init__(
        self,
        planner: SafePlanner,
        *,
        frontend: FrontendMetrics | None = None,
        board: SignalBoard | None = None,
        shadow: bool = False,
        launched: bool = False,
    ) -> None:
        self._planner = planner
        self._frontend = frontend
        self._board = board or SignalBoard()
        self._shadow = shadow
        self._launched = launched
        self._asked_s: float | None = None
        self._ticks_s: list[float] = []
        self._clock_s: float | None = None
        self._ahead_s = 0.0
        """By how much the host's clock has been set back so far."""

    @property
    def interval_s(self) -> float:
        """Seconds between two ticks that the planner expects."""
        return self._planner.interval_s

    @property
    def needs(self) -> tuple[str, ...]:
        """What Dynamo must tell at each tick."""
        return NEEDS if self._frontend is not None else (NEEDS_TRAFFIC, *NEEDS)

    def keep(self) -> None:
        """Write down what was learned, for one that goes on from there."""
        self._planner.keep()

    def close(self) -> None:
        """Close the decision log, and take the signals back."""
        self._planner.close()
        self._board.close()

    async def begin(self) -> None:
        """Read the frontend once, so that the first tick already sees a window of traffic."""
        if self._frontend is not None:
            with suppress(OSError):  # not up yet; then the first tick begins the window
                await in_thread(self._frontend.collect)

    async def propose(self, context: Any) -> Decision[ScalePlan] | None:
        """Decide one tick. None, in shadow and before the first good decision, leaves Dynamo its own behaviour."""
        try:
            now_s = self._now_s(context)
            traffic = await self._traffic(context, now_s)
            view = planner_view(context, now_s, traffic, self._wanted)
        except Exception as error:  # whatever the host says, its planner loop goes on
            decision = self._planner.hold(f"{type(error).__name__}: {one_line(error)}", error)
        else:
            parts = {Kind.PLANNER: self._planner}
            signals.hear(parts, self._board, view.now_s)
            decision = self._planner.decide(view)
            signals.tell(parts, self._board, view.now_s)
        return decision if self._planner.decided and not self._shadow else None

    @property
    def _wanted(self) -> ScalePlan | None:
        """The plan that Dynamo follows; None where it follows none of ours, or did so for an earlier process."""
        follows = not self._shadow and (self._launched or self._planner.decided)
        return self._planner.last if follows else None

    async def _traffic(self, context: Any, now_s: float) -> Traffic | None:
        if self._frontend is not None:
            return await in_thread(self._frontend.collect)
        before_s, self._asked_s = self._asked_s, now_s
        traffic = context_traffic(context)
        if traffic is None or before_s is None or not 0 < (since_s := now_s - before_s) < traffic.window_s:
            return traffic
        # Dynamo asks Prometheus for a longer window than that since the last tick, which would count requests twice.
        return replace(traffic, window_s=since_s, requests=traffic.requests * since_s / traffic.window_s)

    def _now_s(self, context: Any) -> float:
        """Return the time of a tick. Dynamo tells wall time, which may be set back; what planners see does not."""
        tick_s = tick_time_s(context)
        clock_s = time.time() if tick_s is None else tick_s
        if self._clock_s is not None and clock_s < self._clock_s:
            self._ahead_s += self._clock_s - clock_s + LEAST_STEP_S
        self._clock_s = clock_s
        now_s = clock_s + self._ahead_s
        if not self._launched and len(self._ticks_s) < 2:  # our own launcher asks as often as it likes at first
            self._ticks_s.append(now_s)
            self._check_cadence()
        return now_s

    def _check_cadence(self) -> None:
        if len(self._ticks_s) < 2:
            return
        between_s, wanted_s = self._ticks_s[1] - self._ticks_s[0], self._planner.interval_s
        if abs(between_s - wanted_s) > CADENCE_TOLERANCE * wanted_s:
            log.warning(
                "Dynamo asks every %.1f s, the planner expects %.1f s; set the plugin's execution_interval_seconds "
                "to %g and scheduling.scale_interval_seconds to a divisor of it",
                between_s,
                wanted_s,
                wanted_s,
            )
