"""One run: a workload, a fleet, and the policies that decide over them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from pdplugins.contracts.batching import BatchScheduler
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Flow
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.roles import HearsRoles
from pdplugins.contracts.router import Router
from pdplugins.contracts.workers import Role
from pdplugins.runtime.batching import SafeBatchScheduler
from pdplugins.runtime.decision import Journal
from pdplugins.runtime.faults import implements
from pdplugins.runtime.planner import SafePlanner
from pdplugins.runtime.power import SafePowerController
from pdplugins.runtime.router import SafeRouter
from pdplugins.sim.core.admission import FlowPolicy
from pdplugins.sim.core.batching import FirstComeFirstServed, Scheduled
from pdplugins.sim.core.clock import TICKS_PER_S, Events, seconds, ticks
from pdplugins.sim.core.control import PlannerLoop, PowerLoop, RouterLoop
from pdplugins.sim.core.dispatch import Dispatcher
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.fleet import Fleet, FleetSettings
from pdplugins.sim.core.flight import Arrival
from pdplugins.sim.core.kv import KvCache
from pdplugins.sim.core.links import Links, Port
from pdplugins.sim.core.loop import handle_all
from pdplugins.sim.core.policy_clock import PolicyClock
from pdplugins.sim.core.power import Power
from pdplugins.sim.core.records import Gaps
from pdplugins.sim.core.routing import Routing
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome, SimSettings
from pdplugins.sim.core.steps import StepTimes
from pdplugins.sim.core.views import LiveView
from pdplugins.sim.core.worker import Hardware

log = logging.getLogger("pdplugins.sim")


class Simulation:
    """One run. `run` may be called once.

    :param flow: holds requests before the router is asked. Without it the router places each one as it arrives.
    :param batch_scheduler: makes one scheduler for each engine. Without it engines batch first come, first served.
    :param engine: the class of the engines. Tests pass a plain one.
    :param sampler: samples the fleet now and then. It changes nothing but the count of events.
    """

    def __init__(  # noqa: PLR0913 - the five kinds of policy, and what they decide over
        self,
        deployment: Deployment,
        settings: SimSettings,
        router: Router,
        *,
        flow: Flow | None = None,
        planner: Planner | None = None,
        power: PowerController | None = None,
        batch_scheduler: Callable[[], BatchScheduler] | None = None,
        engine: type[Any] = Engine,
        sampler: Sampler | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._settings = settings
        self._scheduler = batch_scheduler
        self._engine = engine
        self._sampler = sampler
        self._events = Events()
        self._clock = PolicyClock(journal)
        self._journal = journal
        self._gaps = Gaps(TICKS_PER_S)
        decode_kv = deployment.kv_tokens if settings.kv_tokens is None else settings.kv_tokens
        own = {
            Role.PREFILL: Hardware(deployment.perf, deployment.prefill_tp, settings.kv_tokens),
            Role.DECODE: Hardware(deployment.perf, deployment.decode_tp, decode_kv),
        }
        self._fleet = Fleet(
            self._events,
            {**own, **settings.hardware},
            deployment.gpu_budget,
            FleetSettings(
                deployment.startup_s,
                settings.flip_s,
                settings.flip == "label",
                deployment.any_role,
                planner is not None,
                settings.drain_deadline_s,
            ),
            settings.engine,
            self._build,
        )
        remember = batch_scheduler is not None or bool(settings.deaths)
        safe_router = SafeRouter(router, deployment, journal=journal, tally=self._clock.tally(Kind.ROUTER))
        self._routing = Routing(safe_router, settings.predict, remember)
        self._gaps.mortal = bool(settings.deaths)
        self._deaths_missed = 0
        links = Links(self._events)
        flow_policy = (
            None if flow is None else FlowPolicy(flow, deployment.slo.ttft_s, self._clock.tally(Kind.FLOW), journal)
        )
        self._dispatcher = Dispatcher(
            self._events, self._fleet, links, self._routing, settings, self._gaps, flow_policy
        )
        self._power = Power(self._events, self._fleet, settings.power)
        self._populate()
        self._loops: list[PlannerLoop | PowerLoop | RouterLoop] = []
        if safe_router.plans_ahead:
            self._loops.append(RouterLoop(safe_router, self._fleet, self._dispatcher))
        if planner is not None:
            self._loops.append(PlannerLoop(planner, self._fleet, self._dispatcher))
        if isinstance(planner, SafePlanner):
            self._clock.adopt(planner.tally)
        if power is not None:
            safe_power = SafePowerController(power, deployment, journal=journal, tally=self._clock.tally(Kind.POWER))
            self._loops.append(PowerLoop(safe_power, self._power, self._fleet, self._dispatcher))
        own_planner = planner.policy if isinstance(planner, SafePlanner) else planner
        for kind, policy in ((Kind.PLANNER, own_planner), (Kind.ROUTER, router), (Kind.POWER, power)):
            hears: Any = policy
            if implements(hears, HearsRoles):
                self._fleet.roles.tell(hears, partial(self._clock.fault, kind))

    def _populate(self) -> None:
        settings = self._settings
        alike: list[tuple[Role, Hardware | None]] = [
            *[(Role.PREFILL, None)] * settings.prefill,
            *[(Role.DECODE, None)] * settings.decode,
        ]
        self._fleet.populate((*alike, *settings.extra))
        for second, name in settings.deaths:
            self._events.call_at(ticks(second), self._worker_dies, name)

    def _worker_dies(self, name: str) -> None:
        if name in self._fleet.workers:
            self._dispatcher.failures.worker_dies(name)
        else:
            self._deaths_missed += 1
            log.warning("simulation.deaths: there is no worker %s at %g s", name, seconds(self._events.now))

    def _build(self, view: LiveView, times: StepTimes, kv: KvCache, port: Port) -> Any:
        batching: FirstComeFirstServed | Scheduled = FirstComeFirstServed()
        if self._scheduler is not None:
            tally = self._clock.tally(Kind.BATCH_SCHEDULER)
            batching = Scheduled(SafeBatchScheduler(self._scheduler(), journal=self._journal, tally=tally))
        return self._engine(
            view, times, kv, port, self._settings.engine, batching, self._events, self._dispatcher, self._gaps
        )

    def run(self, workload: Iterable[Arrival], progress: Callable[[float], None] | None = None) -> RunOutcome:
        """Run until every request has ended. Arrivals must come in order of time.

        :param progress: called with the virtual time in seconds now and then, between two events. An exception that it
            raises ends the run.
        """
        enabled = gc.isenabled()
        gc.disable()  # nothing here makes reference cycles, and the search for them costs a third of the run
        try:
            self._run(iter(workload), progress or (lambda _: None))
            return self.outcome()
        finally:
            if enabled:
                gc.enable()

    def _run(self, arrivals: Iterator[Arrival], progress: Callable[[float], None]) -> None:
        for loop in self._loops:
            loop.begin()
        if self._sampler is not None:
            self._sampler.begin(self._dispatcher, self._fleet, self._power)
        handle_all(self._dispatcher, arrivals, progress)
        self._dispatcher.failures.give_up()

    def outcome(self) -> RunOutcome:
        """Return the outcome up to now."""
        lifecycle, handoffs = self._dispatcher.lifecycle, self._dispatcher.handoffs
        interrupted = self._dispatcher.more or lifecycle.open
        end = self._events.now if interrupted else lifecycle.last_end
        changes = [change for source in (*self._loops, self._routing, self._fleet) for change in source.changes]
        return RunOutcome(
            records=lifecycle.records,
            gaps=self._gaps,
            duration_s=seconds(end),
            gpu_hours=self._fleet.gpu_seconds(end) / 3600,
            energy_j=self._power.energy_j(end),
            policies=self._clock,
            scaling=sorted(changes, key=lambda change: change.at_s),
            preemptions=self._fleet.preemptions,
            retries=self._dispatcher.failures.retries,
            deaths_missed=self._deaths_missed,
            handoffs=handoffs.count,
            handoff_s=seconds(handoffs.time),
            events=self._events.sequence,
        )
