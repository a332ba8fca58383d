"""Arrow's global scheduler (Wu et al., Sections 5.3 and 5.5): Algorithms 1 to 4 over four elastic pools.

A prefill request goes to an instance whose predicted TTFT meets the SLO. A decode request goes where its KV cache is,
or to the instance with the fewest running tokens. When no instance meets the SLO, one of the other phase changes its
pool. A pool is only a label, so that takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import RoleMove
from pdplugins.contracts.router import Ending, Outcome, Placement
from pdplugins.contracts.workers import Role, WorkerView
from pdplugins.policies._common import check_ready
from pdplugins.policies.arrow.config import ArrowSettings
from pdplugins.policies.arrow.instance import Instance, PoolName
from pdplugins.policies.arrow.monitor import Monitor
from pdplugins.policies.arrow.pools import DECODE_POOLS, DP, PD, PREFILL_POOLS, D, P, Pools
from pdplugins.policies.arrow.startup import StartupProfiler


class ArrowRouter:
    """`pdplugins.types.Router` of Arrow.

    The role of a worker counts only once: when the worker is first seen, it names the pool. From then on Arrow labels
    workers by its own pools, and proposes that the host changes their roles accordingly.
    """

    def __init__(self, settings: ArrowSettings, deployment: Deployment) -> None:
        self._settings = settings
        self._ttft_s = deployment.slo.ttft_s
        self._tpot_threshold_s = settings.tpot_share * deployment.slo.tpot_s
        self._profiler = StartupProfiler(deployment, settings.max_running_tokens)
        self._workers: tuple[WorkerView, ...] | None = None
        self._instances: dict[str, Instance] = {}
        self._seen = 0
        self._pools = Pools()
        self._monitor = Monitor(self._pools)
        self._at: dict[str, Instance] = {}
        """By request id: the instance that prefills or decodes it. Entries end when the host reports the end."""
        self._bound: dict[str, Instance] = {}
        """Likewise, of requests that were bound early: the instance that prefills it, until it has done so."""
        self._slow_since_s: float | None = None
        self._full_since_s: float | None = None
        """Since when no request has found an instance that could decode it inside the TPOT SLO."""
        self._full_until_s = -inf
        """When the last such request came, and `slow_s` later."""
        self._flips = dict.fromkeys(Role, 0)
        self._role_moves: dict[str, RoleMove] = {}
        """The latest move of each worker, until the host takes it."""

    @property
    def pools(self) -> tuple[int, int]:
        """Number of instances that get new prefill requests, and of those that get new decode requests."""
        return self._pools.size(PREFILL_POOLS), self._pools.size(DECODE_POOLS)

    @property
    def signals(self) -> Mapping[str, float]:
        """Named numbers behind the decisions, which hosts show and export."""
        load = self._pools.load
        return {
            **{f"pool_{name.name.lower()}": float(self._pools.size((name,))) for name in PoolName},
            "flips_to_prefill": float(self._flips[Role.PREFILL]),
            "flips_to_decode": float(self._flips[Role.DECODE]),
            "decode_load": load.share,
            "token_interval_s": load.interval_s,
        }

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        """Return the labels that have changed since the last call."""
        moves, self._role_moves = tuple(self._role_moves.values()), {}
        return moves

    # --- the two decisions -----------------------------------------------------------------------------------------

    def on_arrival(self, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        """Choose the instance that prefills `request`. The decode instance is chosen when prefill is done."""
        self._look(workers, now_s)
        self._leave(request.id)  # the request comes again if its worker has failed
        target, reason = self._schedule_prefill(request, now_s)
        target.start_prefill(request, now_s)
        self._at[request.id] = target
        self._pools.update(target)
        return Placement(target.view.id, None, request.prompt_tokens, reason)

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Choose the instance that decodes `request`."""
        self._look(workers, now_s)
        home = self._instances.get(placement.first)
        if home is not None:
            home.end_prefill(request.id, now_s)
            self._settle(home)
        return self._bind(request, placement, home, now_s)

    def bind_early(
        self, request: Request, placement: Placement, workers: tuple[WorkerView, ...], now_s: float
    ) -> Placement:
        """Choose the instance that decodes `request`, whose prefill waits for that."""
        self._look(workers, now_s)
        home = self._instances.get(placement.first)
        if home is not None:
            self._bound[request.id] = home
        return self._bind(request, placement, home, now_s)

    def on_prefilled(self, request: Request, now_s: float) -> None:
        """Take a prompt that is computed out of the queue of its instance."""
        if (home := self._bound.pop(request.id, None)) is not None and self._instances.get(home.view.id) is home:
            home.prefilled(request.id, now_s)
            self._settle(home)

    def _settle(self, home: Instance) -> None:
        self._pools.update(home)
        self._monitor.settle(home)

    def _bind(self, request: Request, placement: Placement, home: Instance | None, now_s: float) -> Placement:
        target, reason = self._schedule_decode(request, home, now_s)
        target.start_decode(request)
        self._at[request.id] = target
        self._pools.update(target)
        return Placement(placement.first, target.view.id, request.prompt_tokens, reason)

    def on_ended(self, request: Request, outcome: Outcome) -> None:
        """Remove a request from the queues. Learn from its context."""
        if outcome.output_tokens > 0:
            self._profiler.learn(request.prompt_tokens, outcome.output_tokens)
        self._leave(request.id, finished=outcome.ending is Ending.FINISHED)

    def _leave(self, request: str, *, finished: bool = False) -> None:
        """Remove a request from its instances. The end of a prefill counts only when the next one is done."""
        if (home := self._bound.pop(request, None)) is not None:
            home.drop(request)
            self._changed(home)
        if (instance := self._at.pop(request, None)) is not None:
            instance.end_decode(request)
            if not finished:
                instance.drop(request)
            self._changed(instance)

    def _changed(self, instance: Instance) -> None:
        """Sort an instance into its pool again, unless it is gone."""
        if self._instances.get(instance.view.id) is instance:
            self._pools.update(instance)

    def _schedule_prefill(self, r: Request, now_s: float) -> tuple[Instance, str]:
        """Algorithm 1: SLO-aware prefill scheduling."""
        t1 = self._pools[P].first()
        t2 = self._pools[DP].first()
        share = self._settings.ttft_share
        if t1 is not None and t1.meets(r, now_s, self._ttft_s, share):
            return t1, "least delay in P"
        if t2 is not None and t2.meets(r, now_s, self._ttft_s, share):
            return t2, "least delay in D->P"
        if self._decode_load_is_low(now_s) and (t3 := self._try_move_decode_to_prefill()) is not None:
            return t3, f"TTFT would miss its SLO: {t3.view.id} moved to {t3.pool}"
        return t1 or t2 or self._anyone(), "no instance meets the TTFT SLO"

    def _schedule_decode(self, r: Request, home: Instance | None, now_s: float) -> tuple[Instance, str]:
        """Algorithm 2: SLO-aware decode scheduling."""
        if home is not None and home.pool in DECODE_POOLS:
            return home, "KV cache is there"
        t1 = self._pools[D].first()
        t2 = self._pools[PD].first()
        for target, pool in ((t1, D), (t2, PD)):
            if target is not None and target.fits(r, self._tpot_threshold_s):
                self._full_since_s = None
                return target, f"fewest running tokens in {pool}"
        if self._is_full(now_s) and (t3 := self._try_move_prefill_to_decode()) is not None:
            return t3, f"decode is full or over the TPOT SLO: {t3.view.id} moved to {t3.pool}"
        if t1 is not None and (t2 is None or t1.running_tokens <= t2.running_tokens):
            return t1, "no instance has free capacity inside the TPOT SLO"
        return t2 or home or self._anyone(), "no instance has free capacity inside the TPOT SLO"

    def _is_full(self, now_s: float) -> bool:
        """Note that a request found no instance inside the TPOT SLO. Return whether none did for `slow_s`."""
        self._full_until_s = now_s + self._settings.slow_s
        if self._full_since_s is None:
            self._full_since_s = now_s
        if now_s - self._full_since_s < self._settings.slow_s:
            return False
        self._full_since_s = None
        return True

    # --- instance scheduling ---------------------------------------------------------------------------------------

    def _try_move_decode_to_prefill(self) -> Instance | None:
        """Algorithm 3: give the least loaded decode instance to prefill."""
        p = None
        if self._settings.elastic and self._pools.size(DECODE_POOLS) > 1:
            p = self._pools[PD].first(Role.PREFILL) or self._pools[D].first(Role.PREFILL)
            if p is not None:
                self._move_to_prefill(p)
        return p

    def _try_move_prefill_to_decode(self) -> Instance | None:
        """Algorithm 4: give the least loaded prefill instance to decode."""
        d = None
        if self._settings.elastic and self._pools.size(PREFILL_POOLS) > 1:
            d = self._pools[DP].first(Role.DECODE) or self._pools[P].first(Role.DECODE)
            if d is not None:
                self._move_to_decode(d)
        return d

    def _move_to_prefill(self, instance: Instance) -> None:
        self._pools.move(instance, DP if instance.decodes else P)
        self._label(instance, Role.PREFILL)

    def _move_to_decode(self, instance: Instance) -> None:
        self._pools.move(instance, PD if instance.prefills else D)
        self._label(instance, Role.DECODE)

    def _label(self, instance: Instance, role: Role) -> None:
        self._flips[role] += 1
        self._role_moves[instance.view.id] = RoleMove(instance.view.id, role, f"moved to {instance.pool}")

    def _decode_load_is_low(self, now_s: float) -> bool:
        """Return whether decode can spare an instance. Under overload decode keeps its instances (Section 5.5)."""
        load = self._pools.load
        if load.instances <= 1 or now_s < self._full_until_s:
            return False
        without_one = load.share * load.instances / (load.instances - 1)
        return without_one <= self._settings.low_load and load.interval_s <= self._tpot_threshold_s

    # --- the monitor -----------------------------------------------------------------------------------------------

    def _look(self, workers: tuple[WorkerView, ...], now_s: float) -> None:
        """Note new workers, workers that are gone, and the loads."""
        if workers is not self._workers:
            self._take(workers)
        self._monitor.watch(now_s)
        if self._settings.elastic:
            self._relieve_slow_decode(now_s)
            self._help_busy_decode(now_s)

    def _relieve_slow_decode(self, now_s: float) -> None:
        """Move an instance to decode when token intervals have exceeded the TPOT threshold for `slow_s` (case 2)."""
        if self._pools.load.interval_s <= self._tpot_threshold_s:
            self._slow_since_s = None
        elif self._slow_since_s is None:
            self._slow_since_s = now_s
        elif now_s - self._slow_since_s >= self._settings.slow_s:
            self._slow_since_s = now_s
            self._try_move_prefill_to_decode()

    def _help_busy_decode(self, now_s: float) -> None:
        """Move a prefill instance that has been idle for `idle_s` to decode when decode is busy (case 3)."""
        if self._pools.load.share < self._settings.busy_load or self._pools.size(PREFILL_POOLS) <= 1:
            return
        for pool in (DP, P):
            idle = self._pools[pool].first(Role.DECODE)
            if idle is not None and not idle.prefills and now_s - idle.free_at_s >= self._settings.idle_s:
                self._move_to_decode(idle)
                return

    # --- workers that come and go ----------------------------------------------------------------------------------

    def _take(self, workers: tuple[WorkerView, ...]) -> None:
        check_ready("arrow", workers)
        self._workers = workers
        known, self._instances = self._instances, {}
        for view in workers:
            instance = known.pop(view.id, None)
            if instance is None:
                instance = self._new(view)
                self._pools.add(instance)
            instance.view = view
            self._instances[view.id] = instance
        for gone in known.values():
            self._pools.remove(gone)
            self._role_moves.pop(gone.view.id, None)
        self._monitor.instances = tuple(self._instances.values())
        self._serve_both_phases()

    def _new(self, view: WorkerView) -> Instance:
        profiler, role = self._profiler, view.role
        self._seen += 1
        return Instance(
            view, self._seen, P if role is Role.PREFILL else D, profiler.predictor(role), profiler.limits(role)
        )

    def _serve_both_phases(self) -> None:
        """Leave no phase without an instance. A single instance serves both phases, whatever its pool."""
        if len(self._instances) > 1:
            if not self._pools.size(PREFILL_POOLS):
                self._move_to_prefill(self._pools[PD].first() or self._pools[D].first() or self._anyone())
            elif not self._pools.size(DECODE_POOLS):
                self._move_to_decode(self._pools[DP].first() or self._pools[P].first() or self._anyone())

    def _anyone(self) -> Instance:
        return next(iter(self._instances.values()))
