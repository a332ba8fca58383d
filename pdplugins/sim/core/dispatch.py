"""Takes each request from arrival to last token, through the workers that the router chose."""

from __future__ import annotations

from pdplugins.sim.core.admission import FlowControl, FlowPolicy, Frontend
from pdplugins.sim.core.clock import Events, ticks
from pdplugins.sim.core.failure import Failures
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.handoff import Handoffs
from pdplugins.sim.core.holdings import Holdings
from pdplugins.sim.core.lifecycle import Lifecycle
from pdplugins.sim.core.links import Links
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.routing import Routing
from pdplugins.sim.core.settings import SimSettings
from pdplugins.sim.core.window import Window


class Dispatcher:
    """The owner of all engines (`pdplugins.sim.core.protocols.Owner`).

    It only connects the parts that do the work: `lifecycle`, `handoffs` and `failures`. Calls of engines go straight to
    the part in charge. Engines make several for each request, so a call in between would cost time.
    """

    def __init__(
        self,
        events: Events,
        fleet: Fleet,
        links: Links,
        routing: Routing,
        settings: SimSettings,
        gaps: Gaps,
        flow: FlowPolicy | None = None,
    ) -> None:
        self.events = events
        self.links = links
        self.more = True
        """Whether the workload has more arrivals."""
        self._windows = gaps.windows
        holdings = Holdings(links, fleet)
        self.lifecycle = lifecycle = Lifecycle(events, fleet, routing, settings, gaps, holdings)
        self.failures = failures = Failures(events, lifecycle, holdings, fleet, settings.retries)
        self.handoffs = handoffs = Handoffs(
            events, fleet, links, routing, settings, gaps, holdings, lifecycle, failures
        )
        if flow is not None:
            steps = lifecycle.describe, lifecycle.place, lifecycle.refuse
            lifecycle.admission = FlowControl(flow, events, fleet, steps)
        if settings.frontend_s:
            lifecycle.admission = Frontend(events, lifecycle.admission, settings.frontend_s)
        self.admission = lifecycle.admission
        fleet.changed = self.admission.workers_changed
        self.leg_done = handoffs.leg_done
        self.chunk_done = handoffs.chunk_done
        self.read_history = handoffs.read_history
        self.capacity_freed = handoffs.capacity_freed
        self.failed = lifecycle.failed
        self.purged = failures.purged

    @property
    def open(self) -> int:
        """Requests that have arrived and not ended, plus scheduled next rounds of sessions."""
        return self.lifecycle.open

    def watched(self) -> Window:
        """Return a new window, which counts the traffic and latencies that clients see."""
        window = Window()
        self._windows.append(window)
        return window

    def arrive(self, arrival: Arrival) -> None:
        """Take in a request."""
        flight = self.lifecycle.enter(arrival)
        if arrival.cancel_after_s is not None:
            self.events.call_at(self.events.now + ticks(arrival.cancel_after_s), self.failures.cancel, flight)
        self.admission.arrived(flight)
