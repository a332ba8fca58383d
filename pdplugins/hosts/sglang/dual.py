"""The dual-role instance: one SGLang server that prefills for others, decodes for others and serves alone, at once.

It is a decode server to which the other two roles are added. Every method of SGLang runs as it is, with the state of
the role that it works for (see `scope`); these hooks only decide which role that is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pdplugins.config import SglangConfig
from pdplugins.hosts.doctor import resolve
from pdplugins.hosts.sglang.guard import Guard, Hook
from pdplugins.hosts.sglang.limits import refused_arguments, refused_model
from pdplugins.hosts.sglang.loads import add_roles
from pdplugins.hosts.sglang.roles import Classifier, EngineRole
from pdplugins.hosts.sglang.room import PrefillReserve
from pdplugins.hosts.sglang.scope import Scopes
from pdplugins.hosts.sglang.server_mode import prefill_mode
from pdplugins.hosts.sglang.turns import Turns

log = logging.getLogger(__name__)

DECODE, LOCAL, PREFILL = EngineRole.DECODE, EngineRole.LOCAL, EngineRole.PREFILL
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."
TIMEOUT_POLL = "_poll_timeout_aborts"
"""Newer versions of SGLang look for timeouts here; older ones inside the method that composes local batches."""


class DualRole:
    """The hooks of one server process, and, in its scheduler process, the state of the roles."""

    def __init__(self, settings: SglangConfig, guard: Guard) -> None:
        self._settings = settings
        self._guard = guard
        self._turns = Turns(settings.prefill_burst)
        self._hold_prefill = False
        self._scopes: Scopes | None = None
        self._classifier: Classifier
        self._reserve: PrefillReserve

    def hooks(self) -> dict[str, Hook]:
        """Return each hook by the name of what it wraps."""
        components = "sglang.srt.managers.scheduler_components."
        newer = {SCHEDULER + TIMEOUT_POLL: self.timeouts} if hasattr(resolve(SCHEDULER[:-1]), TIMEOUT_POLL) else {}
        return newer | {
            "sglang.srt.server_args.ServerArgs.check_server_args": self.check_arguments,
            "sglang.srt.managers.disagg_service.start_disagg_service": self.start_bootstrap_server,
            SCHEDULER + "init_disaggregation": self.build,
            SCHEDULER + "handle_generate_request": self.receive,
            SCHEDULER + "_add_request_to_queue": self.enqueue,
            SCHEDULER + "get_next_disagg_decode_batch_to_run": self.next_batch,
            SCHEDULER + "get_new_batch_prefill": self.new_prefill,
            SCHEDULER + "run_batch": self.with_batch,
            SCHEDULER + "process_batch_result": self.with_batch,
            SCHEDULER + "abort_request": self.abort,
            SCHEDULER + "pause_generation": self.pause,
            SCHEDULER + "is_fully_idle": self.is_fully_idle,
            components + "load_inquirer.SchedulerLoadInquirer.get_loads": self.loads,
            "sglang.srt.disaggregation.decode.DecodePreallocQueue._allocatable_token_budgets": self.decode_budget,
        }

    # --- start ---------------------------------------------------------------------------------------------------

    def check_arguments(self, original: Callable[..., Any], arguments: Any) -> Any:
        """Refuse options that do not go together with several roles, before anything is loaded."""
        result = original(arguments)
        if reasons := list(refused_arguments(arguments)):
            self._guard.refuse("; ".join(reasons))
        return result

    def start_bootstrap_server(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Start the server at which decode servers register, which a decode server lacks."""
        with prefill_mode(arguments[0] if arguments else None):
            return original(*arguments, **keywords)

    def build(self, original: Callable[..., Any], scheduler: Any) -> None:
        """Let SGLang build its decode side, then its prefill side, and keep the state of both."""
        original(scheduler)
        arguments = scheduler.server_args
        if reasons := [*refused_arguments(arguments), *refused_model(scheduler)]:
            self._guard.refuse("; ".join(reasons))
            return
        decode = dict(vars(scheduler))
        with prefill_mode(arguments):
            original(scheduler)
        prefill = vars(scheduler)
        names = {name for name, value in prefill.items() if value is not decode.get(name)} | {"waiting_queue"}
        prefill_side = {name: prefill[name] for name in names} | {"waiting_queue": [], "is_mixed_chunk": False}
        decode_side = {name: decode.get(name, prefill[name]) for name in names}
        decode_side["is_mixed_chunk"] = scheduler.is_mixed_chunk
        mode = type(scheduler.disaggregation_mode)
        local_side = decode_side | {"waiting_queue": [], "disaggregation_mode": mode.NULL}
        self._scopes = Scopes(scheduler, {LOCAL: local_side, PREFILL: prefill_side, DECODE: decode_side}, DECODE)
        queue = prefill_side["disagg_prefill_bootstrap_queue"]
        hosts = (arguments.host, queue.kv_manager.local_ip, *self._settings.own_hosts)
        self._classifier = Classifier.of(hosts, queue.bootstrap_port)
        self._reserve = PrefillReserve(self._settings.prefill_reserve)
        self._guard.report()
        known = ", ".join(sorted(self._classifier.hosts))
        log.info("pdplugins: dual-role instance; routers know it as %s, port %d", known, self._classifier.port)

    # --- requests ------------------------------------------------------------------------------------------------

    def receive(self, original: Callable[..., Any], scheduler: Any, request: Any, *more: Any, **keywords: Any) -> Any:
        """Take in a request under its role: a local one needs no bootstrap room."""
        with self._as(request):
            return original(scheduler, request, *more, **keywords)

    def enqueue(
        self, original: Callable[..., Any], scheduler: Any, request: Any, is_retracted: bool = False, **more: Any
    ) -> Any:
        """Queue a request under its role; one that was retracted waits on the decode side, which restores its KV."""
        if self._scopes is None:
            return original(scheduler, request, is_retracted, **more)
        role = DECODE if is_retracted else self._classifier.role_of(request)
        with self._scopes.enter(role):
            return original(scheduler, request, is_retracted, **more)

    def abort(self, original: Callable[..., Any], scheduler: Any, request: Any) -> None:
        """Abort a request, or all, in the queues of every role."""
        if self._scopes is None:
            original(scheduler, request)
            return
        self._scopes.for_each(lambda: original(scheduler, request))

    def pause(self, original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
        """Pause in place: SGLang retracts requests of a decode server to the server that prefilled them."""
        if self._scopes is not None and request.mode == "retract":
            log.error("pdplugins: pausing in place: a dual-role instance cannot retract what it prefilled itself")
            request.mode = "in_place"
        return original(scheduler, request)

    # --- steps ---------------------------------------------------------------------------------------------------

    def next_batch(self, original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        """Compose the next step of the engine, in the place where a decode server would compose its own."""
        scopes = self._scopes
        if scopes is None:
            return original(scheduler, running_batch)
        with scopes.enter(PREFILL):
            scheduler.waiting_queue.extend(scheduler.disagg_prefill_bootstrap_queue.pop_bootstrapped())
            scheduler.process_disagg_prefill_inflight_queue()
        last = self._batch_role(scheduler.last_batch)
        order = self._order(scheduler, running_batch, last)
        if last is not DECODE:  # what it ran must join or be sent, whoever is next
            plan = self._settle(last, order[0], scheduler, running_batch)
            if plan.batch_to_run is not None:
                if order[0] is last:
                    self._turns.tried(last)
                return self._counted(scheduler, plan)
            running_batch = plan.running_batch
        self._turns.tried(order[0])
        for role in order:
            plan = self._compose(role, original, scheduler, running_batch)
            if plan.batch_to_run is not None:
                break
            running_batch = plan.running_batch
        return self._counted(scheduler, plan)

    def new_prefill(self, original: Callable[..., Any], scheduler: Any, running_batch: Any, *more: Any) -> Any:
        """Compose no prefill while a local batch that has run joins the running one and it is not local's turn."""
        if self._hold_prefill:
            return no_prefill(running_batch)
        return original(scheduler, running_batch, *more)

    def with_batch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **keywords: Any) -> Any:
        """Run a batch, or process its results, under its role."""
        if self._scopes is None:
            return original(scheduler, batch, *more, **keywords)
        with self._scopes.enter(self._batch_role(batch)):
            return original(scheduler, batch, *more, **keywords)

    def _order(self, scheduler: Any, running_batch: Any, last: EngineRole) -> list[EngineRole]:
        scopes, chunked = self._scopes, scheduler.chunked_req
        assert scopes is not None  # noqa: S101 - for the type checker
        return self._turns.order(
            chunk=None if chunked is None else self._classifier.role_of(chunked),
            waiting=frozenset(role for role in (LOCAL, PREFILL) if scopes.peek(role, "waiting_queue")),
            decodes=bool(scheduler.waiting_queue) or not running_batch.is_empty() or last is LOCAL,
        )

    def _settle(self, last: EngineRole, following: EngineRole, scheduler: Any, running_batch: Any) -> Any:
        """Finish the prefill step before, in SGLang's way: this may already compose the next step."""
        scopes = self._scopes
        assert scopes is not None  # noqa: S101 - for the type checker
        if last is PREFILL and following is PREFILL:
            with scopes.enter(PREFILL):
                return scheduler.get_next_disagg_prefill_batch_to_run(running_batch, scheduler.last_batch)
        if last is PREFILL:
            with scopes.enter(PREFILL):
                scheduler.process_prefill_chunk(last_batch=scheduler.last_batch, running_batch=running_batch)
            return no_prefill(running_batch)
        self._hold_prefill = following is not LOCAL
        try:
            return self._local(scheduler, running_batch, scheduler.last_batch)
        finally:
            self._hold_prefill = False

    def _compose(self, role: EngineRole, original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        scopes = self._scopes
        assert scopes is not None  # noqa: S101 - for the type checker
        if role is LOCAL:
            return self._local(scheduler, running_batch, None)
        if role is PREFILL:
            with scopes.enter(PREFILL):
                return scheduler.get_next_disagg_prefill_batch_to_run(running_batch, None)
        chunked, scheduler.chunked_req = scheduler.chunked_req, None  # a decode server has none, and asserts it
        try:
            return original(scheduler, running_batch)
        finally:
            scheduler.chunked_req = chunked

    def _local(self, scheduler: Any, running_batch: Any, last_batch: Any) -> Any:
        """Run SGLang's scheduler of a server that is not disaggregated: a prefill, or else a decode step."""
        assert self._scopes is not None  # noqa: S101 - for the type checker
        running_batch.batch_is_full = False  # the other roles take and free room without saying so here
        with self._scopes.enter(LOCAL):
            return scheduler.get_next_batch_to_run(running_batch, last_batch)

    def _counted(self, scheduler: Any, plan: Any) -> Any:
        """Count the step. A decode step counts as their turn only when no decode still waits to join."""
        batch = plan.batch_to_run
        if batch is not None and (batch.forward_mode.is_extend() or not scheduler.waiting_queue):
            self._turns.ran(prefill=batch.forward_mode.is_extend() and not batch.decoding_reqs)
        return plan

    def _batch_role(self, batch: Any) -> EngineRole:
        """Return the role of a batch: prefill steps have the role of their requests, all others are decode steps."""
        if batch is None or not batch.reqs or not batch.forward_mode.is_extend():
            return DECODE
        return PREFILL if self._classifier.role_of(batch.reqs[0]) is PREFILL else LOCAL

    # --- what others see -----------------------------------------------------------------------------------------

    def is_fully_idle(self, original: Callable[..., Any], scheduler: Any, *more: Any, **keywords: Any) -> bool:
        """Tell whether no role has work."""
        if self._scopes is None:
            return bool(original(scheduler, *more, **keywords))
        return all(self._scopes.for_each(lambda: original(scheduler, *more, **keywords)))

    def loads(self, original: Callable[..., Any], inquirer: Any) -> Any:
        """Report the queues of every role."""
        snapshot = original(inquirer)
        if self._scopes is not None:
            add_roles(snapshot, self._scopes, inquirer.get_chunked_req())
        return snapshot

    def timeouts(self, original: Callable[..., Any], scheduler: Any) -> list[Any]:
        """Look for requests of every role that have waited or run for too long."""
        if self._scopes is None:
            return list(original(scheduler))
        aborts = {abort.rid: abort for found in self._scopes.for_each(lambda: original(scheduler)) for abort in found}
        return list(aborts.values())

    def decode_budget(self, original: Callable[..., Any], queue: Any, *more: Any, **keywords: Any) -> int:
        """Return the tokens that may be allocated for requests that another server prefills: prefill keeps some."""
        budget = int(original(queue, *more, **keywords))
        return budget if self._scopes is None else self._reserve.left(budget, queue, self._scopes)

    @contextmanager
    def _as(self, request: Any) -> Iterator[None]:
        if self._scopes is None:
            yield
            return
        with self._scopes.enter(self._classifier.role_of(request)):
            yield


def no_prefill(running_batch: Any) -> Any:
    """Return SGLang's plan that has nothing to prefill."""
    from sglang.srt.managers.schedule_batch import NextBatchPlan  # noqa: PLC0415 - only inside SGLang

    return NextBatchPlan(batch_to_run=None, running_batch=running_batch)
