"""Calls planners and power controllers at their intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Planner, PlannerView, Traffic
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.workers import Role
from pdplugins.results import Scaling
from pdplugins.runtime.planner import SafePlanner
from pdplugins.runtime.power import SafePowerController
from pdplugins.runtime.router import SafeRouter
from pdplugins.sim.core.clock import seconds, ticks
from pdplugins.sim.core.fleet import Fleet
from pdplugins.sim.core.power import Power
from pdplugins.sim.core.window import Window

if TYPE_CHECKING:
    from pdplugins.sim.core.dispatch import Dispatcher

ROUTER_S = 1.0
"""Seconds between two calls of a router that plans ahead."""


class Loop:
    """Calls `tick` every `interval_s` seconds as long as there are requests, and workers for them."""

    def __init__(self, interval_s: float, fleet: Fleet, dispatcher: Dispatcher) -> None:
        self._interval_s = interval_s
        self._fleet = fleet
        self._dispatcher = dispatcher
        self.changes: list[Scaling] = []

    def begin(self) -> None:
        """Schedule the first tick."""
        self._arm()

    def _arm(self) -> None:
        events = self._dispatcher.events
        events.call_at(events.now + ticks(self._interval_s), self._again)

    def _again(self, _: object) -> None:
        self.tick()
        if (self._dispatcher.open or self._dispatcher.more) and not self._fleet.lost:
            self._arm()

    def tick(self) -> None:
        """Ask the policy and carry out its answer."""
        raise NotImplementedError

    def _view(self, window: Window, window_s: float) -> PlannerView:
        for worker in self._fleet.workers.values():
            worker.engine.note_first_tokens()
        return self._seen(window.close(self._dispatcher.events.now, window_s))

    def _seen(self, traffic: Traffic | None) -> PlannerView:
        fleet = self._fleet
        return PlannerView(fleet.now_s, traffic, fleet.pool(Role.PREFILL), fleet.pool(Role.DECODE))

    def _note(self, reason: str) -> None:
        fleet, roster = self._fleet, self._fleet.roster
        prefill, decode = roster.coming(Role.PREFILL), roster.coming(Role.DECODE)
        self.changes.append(Scaling(at_s=fleet.now_s, prefill=prefill, decode=decode, reason=reason))


class PlannerLoop(Loop):
    """Follows a planner. It must be a safe one, because its answers are carried out unchecked."""

    def __init__(self, planner: Planner, fleet: Fleet, dispatcher: Dispatcher) -> None:
        super().__init__(planner.interval_s, fleet, dispatcher)
        self._window = dispatcher.watched()
        self._planner = planner
        self._asked = 0
        """When it was last asked, in ticks."""

    def _arm(self) -> None:
        self._asked = self._dispatcher.events.now
        self._look(None)

    def _look(self, _: object) -> None:
        """Ask when the interval is over, or before that where the planner wants it; else look again later."""
        events = self._dispatcher.events
        due = self._asked + ticks(self._interval_s)
        if events.now >= due or not (wait_s := self._wait_s()):
            self._again(None)
        else:
            events.call_at(due if math.isinf(wait_s) else min(due, events.now + ticks(wait_s)), self._look)

    def _wait_s(self) -> float:
        if not isinstance(self._planner, SafePlanner) or not self._planner.eager:
            return math.inf
        now = self._dispatcher.events.now
        traffic = self._window.so_far(now, seconds(now - self._asked)) if now > self._asked else None
        return self._planner.wait_s(self._seen(traffic))

    def tick(self) -> None:
        """Ask how many workers of each role there should be, and propose them."""
        since = self._dispatcher.events.now - self._asked
        whole = since == ticks(self._interval_s)
        view = self._view(self._window, self._interval_s if whole else seconds(since)) if since else self._seen(None)
        plan = self._planner.plan(view)
        if self._fleet.roles.propose_pools(plan, Kind.PLANNER, self._fleet.now_s):
            self._note(plan.reason)


class RouterLoop(Loop):
    """Lets a router do between requests what no request should wait for."""

    def __init__(self, router: SafeRouter, fleet: Fleet, dispatcher: Dispatcher) -> None:
        super().__init__(ROUTER_S, fleet, dispatcher)
        self._router = router

    def tick(self) -> None:
        """Call it, and propose the roles that it wants."""
        self._router.plan_ahead(self._fleet.ready, self._fleet.now_s)
        if moves := self._router.take_role_moves():
            self._fleet.roles.propose_moves(moves, Kind.ROUTER, self._fleet.now_s)


class PowerLoop(Loop):
    """Follows a power controller on the GPUs of all workers."""

    def __init__(self, controller: SafePowerController, power: Power, fleet: Fleet, dispatcher: Dispatcher) -> None:
        super().__init__(controller.interval_s, fleet, dispatcher)
        self._window = dispatcher.watched()
        self._controller = controller
        self._power = power

    def begin(self) -> None:
        """Ask for the caps at start, which count at once, and schedule the first tick."""
        self._ask(0.0)
        super().begin()

    def tick(self) -> None:
        """Ask for caps and roles."""
        self._ask(self._interval_s)

    def _ask(self, window_s: float) -> None:
        power, fleet = self._power, self._fleet
        view = self._view(self._window, window_s)
        gpus = tuple(device.view() for device in power.devices())
        plan = self._controller.control(gpus, view)
        if plan is None:
            return
        power.follow(plan.caps_w, at_once=not window_s)
        owner = {gpu: worker.view.id for worker in fleet.workers.values() for gpu in worker.gpus}
        moves = [RoleMove(owner[flip.gpu], flip.role, plan.reason) for flip in plan.flips if flip.gpu in owner]
        fleet.roles.propose_moves(moves, Kind.POWER, fleet.now_s)
        if plan.flips:
            self._note(plan.reason)
