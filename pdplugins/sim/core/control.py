"""Planners and power controllers on their ticks."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from pdplugins.contracts.planner import Planner, PlannerView
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.workers import Role
from pdplugins.results import Scaling
from pdplugins.sim.core.clock import seconds, ticks
from pdplugins.sim.core.fleet import Fleet, Life, Worker
from pdplugins.sim.core.policy_clock import PolicyClock
from pdplugins.sim.core.power import Power
from pdplugins.sim.core.window import Window

if TYPE_CHECKING:
    from pdplugins.sim.core.dispatch import Dispatcher
    from pdplugins.sim.core.settings import SimSettings


class Loop:
    """Something that happens every `interval_s` seconds as long as there are requests."""

    def __init__(self, interval_s: float, fleet: Fleet, dispatcher: Dispatcher, clock: PolicyClock) -> None:
        self._interval_s = interval_s
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._clock = clock
        self.changes: list[Scaling] = []

    def begin(self) -> None:
        """Arm the first tick."""
        self._arm()

    def _arm(self) -> None:
        events = self._dispatcher.events
        events.call_at(events.now + ticks(self._interval_s), self._again)

    def _again(self, _: object) -> None:
        self.tick()
        if self._dispatcher.open or self._dispatcher.more:
            self._arm()

    def tick(self) -> None:
        """Ask the policy and do what it says."""
        raise NotImplementedError

    def _view(self, window: Window, window_s: float) -> PlannerView:
        fleet, now = self._fleet, self._dispatcher.events.now
        for worker in fleet.workers.values():
            worker.engine.note_first_tokens()
        return PlannerView(seconds(now), window.close(now, window_s), fleet.pool(Role.PREFILL), fleet.pool(Role.DECODE))

    def _note(self, reason: str) -> None:
        fleet, at_s = self._fleet, seconds(self._dispatcher.events.now)
        prefill, decode = fleet.coming(Role.PREFILL), fleet.coming(Role.DECODE)
        self.changes.append(Scaling(at_s=at_s, prefill=prefill, decode=decode, reason=reason))

    def _move_role(self, worker: Worker, role: Role, how: str) -> None:
        if how == "label":
            self._fleet.relabel(worker, role)
        else:
            self._fleet.drain(worker, role)


class PlannerLoop(Loop):
    """Follows a planner. Give it a guarded one: whatever it answers is done."""

    def __init__(
        self, planner: Planner, fleet: Fleet, dispatcher: Dispatcher, settings: SimSettings, clock: PolicyClock
    ) -> None:
        super().__init__(planner.interval_s, fleet, dispatcher, clock)
        self._window = dispatcher.watched()
        self._planner = planner
        self._settings = settings

    def tick(self) -> None:
        """Ask how many workers of each role there should be, and start, drain or change as many."""
        fleet = self._fleet
        view = self._view(self._window, self._interval_s)
        began = perf_counter_ns()
        plan = self._planner.plan(view)
        self._clock.add("planner", perf_counter_ns() - began)
        more = {
            role: wanted - fleet.coming(role)
            for role, wanted in ((Role.PREFILL, plan.prefill), (Role.DECODE, plan.decode))
        }
        if any(more.values()):
            self._follow(more)
            self._note(plan.reason)

    def _follow(self, more: dict[Role, int]) -> None:
        for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            while more[role] < 0 and self._fleet.forgo(role):
                more[role] += 1
            while more[role] < 0:
                worker = self._least_needed(role)
                if more[other] > 0 and self._may_flip(worker, other):
                    self._move_role(worker, other, self._settings.flip)
                    more[other] -= 1
                else:
                    self._fleet.drain(worker)
                more[role] += 1
        for role, count in more.items():
            for _ in range(count):
                self._fleet.want(role)

    def _may_flip(self, worker: Worker, role: Role) -> bool:
        return worker.life is Life.READY and worker.hardware.tp == self._fleet.tp(role)

    def _least_needed(self, role: Role) -> Worker:
        """Return the youngest worker that starts, else the one with the fewest requests."""
        if starting := self._fleet.of(role, Life.STARTING):
            return starting[-1]
        return min(self._fleet.of(role, Life.READY, Life.FLIPPING), key=lambda worker: worker.open)


class PowerLoop(Loop):
    """Follows a power controller on the GPUs of all workers."""

    def __init__(
        self,
        controller: PowerController,
        power: Power,
        fleet: Fleet,
        dispatcher: Dispatcher,
        settings: SimSettings,
        clock: PolicyClock,
    ) -> None:
        super().__init__(controller.interval_s, fleet, dispatcher, clock)
        self._window = dispatcher.watched()
        self._controller = controller
        self._power = power
        self._settings = settings

    def begin(self) -> None:
        """Ask for the caps at start, which count at once, and arm the first tick."""
        self._ask(0.0)
        super().begin()

    def tick(self) -> None:
        """Ask for caps and roles."""
        self._ask(self._interval_s)

    def _ask(self, window_s: float) -> None:
        power, fleet = self._power, self._fleet
        view = self._view(self._window, window_s)
        gpus = tuple(device.view() for device in power.devices())
        began = perf_counter_ns()
        try:
            plan = self._controller.control(gpus, view)
        except Exception as error:
            self._clock.fault("power", error)
            return
        finally:
            self._clock.add("power", perf_counter_ns() - began)
        power.follow(plan.caps_w, at_once=not window_s)
        of_gpu = {gpu: worker for worker in fleet.workers.values() for gpu in worker.gpus}
        for flip in plan.flips:
            worker = of_gpu.get(flip.gpu)
            if worker is not None and worker.view.role is not flip.role and worker.life is Life.READY:
                self._move_role(worker, flip.role, self._settings.flip)
        if plan.flips:
            self._note(plan.reason)
