"""The loop of the daemon: watts are kept many times a second, the policy is asked at its interval. Never waits."""

from __future__ import annotations

import logging
import math

from pdplugins.contracts.planner import PlannerView
from pdplugins.contracts.power import GpuView, PowerPlan
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError
from pdplugins.hosts.power.assembly import Seat
from pdplugins.hosts.power.beside import Seen, Watch
from pdplugins.hosts.power.metrics import NodeMetrics
from pdplugins.hosts.power.roles import Roles
from pdplugins.power.node import PowerNode
from pdplugins.runtime.power import SafePowerController

log = logging.getLogger("pdplugins.power")

NOTHING = Seen(None, {}, {})
LOG_EVERY = 100
"""Decisions of a kind that are not followed, of which one is logged after the first."""


class PowerLoop:
    """One node under one power policy.

    :param watch: what the host tells; None where it tells nothing.
    :param stale_s: age from which that counts no more.
    :param shadow: decide and write nothing, neither caps nor roles.
    """

    def __init__(
        self,
        node: PowerNode,
        seats: tuple[Seat, ...],
        roles: Roles,
        watch: Watch | None,
        controller: SafePowerController,
        metrics: NodeMetrics,
        *,
        stale_s: float,
        shadow: bool = False,
    ) -> None:
        self.controller = controller
        self.plan: PowerPlan | None = None
        """What the policy wanted last."""
        self._node = node
        self._roles = roles
        self._watch = watch
        self._metrics = metrics
        self._stale_s = stale_s
        self._shadow = shadow
        self._uuids = tuple(node.gpus)
        self._owner = {gpu: seat.worker for seat in seats for gpu in seat.gpus}
        self._said: dict[str, str] = {}
        self._begun = False
        self._due_s = -math.inf
        self._seen_s = -math.inf
        metrics.node = node

    def step(self, now_s: float) -> None:
        """Do what is due. Raises ConfigError when the caps from before cannot be saved: then nothing was changed."""
        self._node.tick(now_s)
        self._tell_faults()
        self._roles.tick(now_s)
        if not self._node.ready:
            return
        if not self._begun:
            self._node.keep_before()
            self._begun = True
        if now_s >= self._due_s:
            self._due_s = now_s + self.controller.interval_s
            self._decide(now_s)
            self._node.fit()

    def _tell_faults(self) -> None:
        """Log what is wrong with a GPU when that changes."""
        for uuid, gpu in self._node.gpus.items():
            why = gpu.refusal or gpu.why
            if why != self._said.get(uuid, ""):
                self._said[uuid] = why
                log.warning("%s", why or f"{uuid} answers and takes caps again")

    def gpus(self) -> tuple[GpuView, ...]:
        """Return the GPUs as the policy sees them."""
        views = []
        for index, worker in sorted(self._owner.items()):
            uuid = self._uuids[index]
            reading = self._node.gpus[uuid].reading
            draw_w = math.nan if reading is None else reading.draw_w
            views.append(GpuView(index, self._roles.role(worker), draw_w, self._node.caps.accounts[uuid].told_w))
        return tuple(views)

    def _decide(self, now_s: float) -> None:
        seen = self._latest(now_s)
        self._roles.told(seen.roles)
        pools = {role: seen.pool(role, self._roles.ready(role)) for role in Role}
        view = PlannerView(now_s, seen.traffic, pools[Role.PREFILL], pools[Role.DECODE])
        plan = self.controller.control(self.gpus(), view)
        if plan is None:
            return
        self.plan = plan
        try:
            followed = self._node.aim({self._uuids[index]: cap_w for index, cap_w in plan.caps_w.items()}, now_s)
        except ConfigError as error:
            self._held("refused", str(error))
            return
        if not followed:
            self._held("rolled_back", "a change of caps failed and is being rolled back")
            return
        if plan.reason:
            log.info("%s%s", "would: " if self._shadow else "", plan.reason)
        if not self._shadow:
            moves = [RoleMove(self._owner[flip.gpu], flip.role, plan.reason) for flip in plan.flips]
            self._roles.propose(moves, now_s)

    def _latest(self, now_s: float) -> Seen:
        """Return what the host told. Traffic is told once: a policy may sum it up."""
        if self._watch is None:
            return NOTHING
        latest = self._watch.latest
        if latest is None or now_s - latest[0] > self._stale_s:
            self._held("stale", self._watch.error or "no answer yet")
            return NOTHING
        at_s, seen = latest
        if at_s <= self._seen_s:
            return Seen(None, seen.roles, seen.loads)
        self._seen_s = at_s
        return seen

    def _held(self, why: str, detail: str) -> None:
        count = self._metrics.held[why] = self._metrics.held[why] + 1
        if count % LOG_EVERY == 1:
            log.warning("caps and roles are held, %s (%d so far): %s", why, count, detail)
