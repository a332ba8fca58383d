"""The dashboard of a gateway: what its clients got in the last minutes, its workers, and what its policies decided."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from pdplugins import metrics
from pdplugins.config import Config
from pdplugins.contracts.flow import Refuse
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Slo
from pdplugins.contracts.roles import RoleChange, Stage
from pdplugins.contracts.router import Ending, Outcome, Placement
from pdplugins.contracts.workers import Role
from pdplugins.report.address import Address
from pdplugins.report.live import Gauge, Live, Now, by_role
from pdplugins.report.server import Dashboard
from pdplugins.runtime.decision import Decision, Fault, Journal

if TYPE_CHECKING:
    from pdplugins.gateway.app import Gateway
    from pdplugins.gateway.backends import Backend

EVERY_S = 1.0
"""Seconds between two moments, and between two ordinary decisions of a kind that are shown."""
WINDOW_S = 60.0
"""Attainment and percentiles are of the requests that ended in this time."""
MOST_ENDED = 20_000
"""Requests of that time that are remembered."""


class Board:
    """The dashboard of one gateway. Tell it of endings, role changes and decisions; it asks for the rest."""

    def __init__(self, config: Config, address: Address) -> None:
        self._config = config
        self._slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
        self.live = Live()
        self._dashboard = Dashboard(self.live, address)
        self._began_s = monotonic()
        self._ended: deque[tuple[float, Outcome]] = deque(maxlen=MOST_ENDED)
        self._flips = 0

    @property
    def url(self) -> str:
        """Its address, once it has been started."""
        return self._dashboard.url

    async def start(self) -> None:
        """Listen. Raises HostError when the port cannot be had."""
        await self._dashboard.start()

    async def stop(self) -> None:
        """Close all connections."""
        await self._dashboard.stop()

    async def watch(self, gateway: Gateway) -> None:
        """Look at the gateway once a second, for as long as it runs."""
        while True:
            now_s = monotonic()
            self.live.show(now_s - self._began_s, self._now(gateway, now_s))
            await asyncio.sleep(EVERY_S)

    # --- what it is told -------------------------------------------------------------------------------------------

    def heard(self, outcome: Outcome) -> None:
        """Take in how a request ended."""
        self._ended.append((monotonic(), outcome))

    def on_role_change(self, change: RoleChange) -> None:
        """Take in a change of a worker's role."""
        if change.stage is not Stage.BEGUN:
            self._flips += change.stage is Stage.DONE
            stage = "" if change.stage is Stage.DONE else f", {change.stage}"
            self.decided(f"{change.by}: {change.worker} from {change.before} to {change.role}{stage}", change.reason)

    def decided(self, what: str, why: str) -> None:
        """Take in a decision."""
        self.live.decided(monotonic() - self._began_s, what, why)

    # --- what it shows -----------------------------------------------------------------------------------------------

    def _now(self, gateway: Gateway, now_s: float) -> Now:
        recent = [outcome for at_s, outcome in self._ended if now_s - at_s <= WINDOW_S]
        span_s, last = min(WINDOW_S, max(now_s - self._began_s, 1.0)), "minute"
        if len(recent) == MOST_ENDED:  # of more requests only the last ones are remembered
            span_s = max(now_s - self._ended[0][0], 1e-3)
            last = f"{span_s:.1f} s"
        judged = [one for one in recent if one.ending is not Ending.CANCELLED and _known(one)]
        share = metrics.attainment(sum(map(self._inside, judged)), len(judged))
        failed = sum(one.ending in {Ending.FAILED, Ending.REFUSED} for one in recent)
        percent = "nothing yet" if share is None else f"{share:.1%} of {len(judged)} requests"
        slo = f"TTFT {self._slo.ttft_s:g} s and TPOT {1e3 * self._slo.tpot_s:g} ms"
        backends = gateway.backends.all
        return Now(
            f"Last {last}: {percent} inside {slo}",
            lines=["Streams only: of an answer in one piece nobody sees the first token."],
            facts={
                "requests/s": f"{len(recent) / span_s:.1f}",
                "in flight": gateway.admission.requests,
                "failed or refused": failed,
                "workers there": f"{sum(one.alive for one in backends)} of {len(backends)}",
                "flips": self._flips,
                "faults since the start": gateway.metrics.faults.total(),
            },
            gauges=self._gauges(gateway, recent, share),
            workers=[_row(backend) for backend in backends],
            worker_titles=("worker", "state", "role", "waiting", "running", "free KV tokens"),
            settings=self._settings(gateway),
        )

    def _inside(self, outcome: Outcome) -> bool:
        if outcome.ending is not Ending.FINISHED or outcome.ttft_s is None:
            return False
        return bool(metrics.inside(outcome.ttft_s, outcome.tpot_s or 0.0, self._slo))

    def _gauges(self, gateway: Gateway, recent: Sequence[Outcome], share: float | None) -> list[Gauge]:
        alive = [backend.view for backend in gateway.backends.all if backend.alive]
        by = {role: [view for view in alive if view.role is role] for role in Role}
        queued, running = (
            by_role(*(sum(getattr(view.load, name) for view in by[role]) for role in (Role.PREFILL, Role.DECODE)))
            for name in ("queued_requests", "running_requests")
        )
        before = {} if gateway.serving.queue is None else {"before the workers": float(gateway.serving.queue.length)}
        first = [one.ttft_s for one in recent if one.ttft_s is not None]
        tokens = [1e3 * one.tpot_s for one in recent if one.tpot_s is not None]
        watts = {name: value for name, value in gateway.policies.signals().items() if name.endswith("_w")}
        found = [
            Gauge("Inside the objectives", "% of a minute's", {"": share and 100 * share}, share=True, step=False),
            Gauge("Requests that wait", "requests", {**before, **queued}),
            Gauge("Time to first token", "s", _spread(first), self._slo.ttft_s, step=False),
            Gauge("Time per output token", "ms", _spread(tokens), 1e3 * self._slo.tpot_s, step=False),
            Gauge("Workers that serve", "workers", by_role(*(len(by[role]) for role in (Role.PREFILL, Role.DECODE)))),
            Gauge("Requests that run", "requests", running),
            Gauge("Requests in the gateway", "requests", {"": gateway.admission.requests}),
        ]
        return [*found, Gauge("Power", "W", watts)] if watts else found

    def _settings(self, gateway: Gateway) -> Mapping[str, object]:
        chosen = {kind: choice.name for kind in (Kind.ROUTER, Kind.FLOW) if (choice := self._config.choice(kind))}
        return {
            "endpoint": gateway.url,
            **{str(kind): name for kind, name in chosen.items()},
            "profile": self._config.deployment.profile,
            "signals": ", ".join(f"{name} {value:g}" for name, value in sorted(gateway.policies.signals().items())),
        }


def _known(outcome: Outcome) -> bool:
    return outcome.ttft_s is not None or outcome.ending is not Ending.FINISHED


def _spread(values: Sequence[float]) -> Mapping[str, float | None]:
    if not values:
        return {"P50": None, "P99": None}
    median, high = np.percentile(values, (50, 99))
    return {"P50": float(median), "P99": float(high)}


def _row(backend: Backend) -> tuple[object, ...]:
    view = backend.view
    state = "there" if backend.alive else "away"
    free = "-" if view.free_kv_tokens is None else f"{view.free_kv_tokens:,}"
    return backend.id, state, view.role, view.load.queued_requests, view.load.running_requests, free


class WatchedJournal:
    """A journal that shows decisions on a board too: of each kind one a second, as a sample."""

    def __init__(self, inner: Journal, board: Board) -> None:
        self._inner = inner
        self._board = board
        self._shown_s = dict.fromkeys(Kind, 0.0)
        self.fault = inner.fault
        self.signals = inner.signals
        self.close = inner.close

    def skips(self, kind: Kind, step_s: float) -> bool:
        """Count a decision and return True, unless one is to be shown now."""
        return not self._due(kind) and self._inner.skips(kind, step_s)

    def decided(self, decision: Decision[Any], seen: Mapping[str, Any]) -> None:
        """Note a decision, and show it if it is time for one."""
        self._inner.decided(decision, seen)
        if self._due(decision.kind):
            self._shown_s[decision.kind] = monotonic()
            what = " ".join(_words(decision, seen))
            self._board.decided(f"{decision.kind}: {what}", getattr(decision.answer, "reason", ""))

    def _due(self, kind: Kind) -> bool:
        return monotonic() - self._shown_s[kind] >= EVERY_S


def _words(decision: Decision[Any], seen: Mapping[str, Any]) -> Iterator[str]:
    match decision.answer:
        case Placement(first, second):
            name = getattr(seen.get("request"), "id", "a request")
            yield f"{name} to {first}" + (f", then {second}" if second not in (None, first) else "")
        case Refuse(name):
            yield f"refuses {name}"
        case other:
            yield type(other).__name__
    if isinstance(decision.fault, Fault):
        yield f"(not its own answer: {decision.fault})"
