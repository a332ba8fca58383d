"""The dual-role instance: one SGLang server that prefills for others, decodes for others and serves alone, at once.

It is a decode server to which the other two roles are added. SGLang's methods run unchanged, on the attributes of one
role at a time (see `scope`). These hooks decide which role that is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from pdplugins.config import SglangConfig
from pdplugins.hosts.sglang import bootstrap, foreign
from pdplugins.hosts.sglang.deadlock import DeadlockWatch
from pdplugins.hosts.sglang.hooking import Hook, HookInstaller
from pdplugins.hosts.sglang.kv_reserve import PrefillReserve
from pdplugins.hosts.sglang.limits import refused_arguments, refused_model
from pdplugins.hosts.sglang.loads import add_roles
from pdplugins.hosts.sglang.names import CHECK_ARGUMENTS, SCHEDULER
from pdplugins.hosts.sglang.nixl import NEXT_CHUNK, next_chunk
from pdplugins.hosts.sglang.older import (
    FINISH,
    POP_TRANSFERRED,
    TIMEOUT_POLL,
    AbortedTransfers,
    end_overdue,
    own_whole_row,
    stop_before_length,
)
from pdplugins.hosts.sglang.roles import Classifier
from pdplugins.hosts.sglang.scope import Scopes
from pdplugins.hosts.sglang.server_mode import prefill_mode
from pdplugins.hosts.sglang.steps import DECODE, LOCAL, PREFILL, Steps, no_prefill
from pdplugins.hosts.sglang.turns import Turns
from pdplugins.hosts.sglang.waiting import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DualState:
    """The state of a dual-role engine, in its scheduler process."""

    scopes: Scopes
    classifier: Classifier
    steps: Steps
    reserve: PrefillReserve
    deadlock: DeadlockWatch


class DualRole:
    """The hooks of one process of a server. Until `build` has run, each one calls SGLang's own method."""

    def __init__(self, settings: SglangConfig, installer: HookInstaller, clock: Clock) -> None:
        self._settings = settings
        self._installer = installer
        self._clock = clock
        self._inquiries = bootstrap.Inquiries()
        self._state: DualState | None = None

    def hooks(self) -> dict[str, Hook]:
        """Return each hook by the name of what it wraps."""
        components = "sglang.srt.managers.scheduler_components."
        newer = hasattr(resolve_name(SCHEDULER[:-1]), TIMEOUT_POLL)
        by_version: dict[str, Hook] = (
            {SCHEDULER + TIMEOUT_POLL: self.timeouts}
            if newer
            else {POP_TRANSFERRED: AbortedTransfers().pop, FINISH: stop_before_length}
        )
        return by_version | {
            CHECK_ARGUMENTS: self.check_arguments,
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
            SCHEDULER + "on_idle": self.wait,
            components + "load_inquirer.SchedulerLoadInquirer.get_loads": self.loads,
            components + "output_streamer._GenerationStreamAccumulator.accept": self.tell,
            "sglang.srt.disaggregation.decode.DecodePreallocQueue._allocatable_token_budgets": self.decode_budget,
            bootstrap.TARGET: self._inquiries.ensure,
            foreign.TARGET: foreign.drop_foreign_messages,
            NEXT_CHUNK: next_chunk(self._clock),
        }

    # --- start ---------------------------------------------------------------------------------------------------

    def check_arguments(self, original: Callable[..., Any], arguments: Any) -> Any:
        """Refuse options that do not go together with several roles, before anything is loaded."""
        result = original(arguments)
        if reasons := list(refused_arguments(arguments)):
            self._installer.refuse("; ".join(reasons))
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
            self._installer.refuse("; ".join(reasons))
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
        scopes = Scopes(scheduler, {LOCAL: local_side, PREFILL: prefill_side, DECODE: decode_side}, DECODE)
        queue = prefill_side["disagg_prefill_bootstrap_queue"]
        hosts = (arguments.host, queue.kv_manager.local_ip, *self._settings.own_hosts)
        classifier = Classifier.of(hosts, queue.bootstrap_port)
        steps = Steps(scopes, classifier, Turns(self._settings.prefill_burst))
        reserve = PrefillReserve(self._settings.prefill_reserve)
        self._state = DualState(scopes, classifier, steps, reserve, DeadlockWatch())
        self._installer.report()
        known = ", ".join(sorted(classifier.hosts))
        log.info("pdplugins: dual-role instance; routers know it as %s, port %d", known, classifier.port)

    # --- requests ------------------------------------------------------------------------------------------------

    def receive(self, original: Callable[..., Any], scheduler: Any, request: Any, *more: Any, **keywords: Any) -> Any:
        """Take in a request under its role: a local one needs no bootstrap room."""
        self._clock.begin()
        with self._as(request):
            return original(scheduler, request, *more, **keywords)

    def enqueue(
        self, original: Callable[..., Any], scheduler: Any, request: Any, is_retracted: bool = False, **more: Any
    ) -> Any:
        """Queue a request under its role; one that was retracted waits on the decode side, which restores its KV."""
        if self._state is None:
            return original(scheduler, request, is_retracted, **more)
        if is_retracted:
            own_whole_row(request, scheduler)
        role = DECODE if is_retracted else self._state.classifier.role_of(request)
        with self._state.scopes.enter(role):
            return original(scheduler, request, is_retracted, **more)

    def tell(self, original: Callable[..., Any], answers: Any, **request: Any) -> Any:
        """Tell the logprobs of prompts that were prefilled here; a decode server leaves them to a prefill server."""
        answers.disaggregation_mode = type(answers.disaggregation_mode).NULL
        return original(answers, **request)

    def abort(self, original: Callable[..., Any], scheduler: Any, request: Any) -> None:
        """Abort a request, or all, in the queues of every role."""
        if self._state is None:
            original(scheduler, request)
            return
        self._state.scopes.for_each(lambda: original(scheduler, request))

    def pause(self, original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
        """Pause in place: SGLang retracts requests of a decode server to the server that prefilled them."""
        if self._state is not None and request.mode == "retract":
            log.error("pdplugins: pausing in place: a dual-role instance cannot retract what it prefilled itself")
            request.mode = "in_place"
        return original(scheduler, request)

    # --- steps ---------------------------------------------------------------------------------------------------

    def next_batch(self, original: Callable[..., Any], scheduler: Any, running_batch: Any) -> Any:
        """Compose the next step of the engine, in the place where a decode server would compose its own."""
        if self._state is None:
            return original(scheduler, running_batch)
        end_overdue(scheduler, self._state.scopes, running_batch)
        plan = self._state.steps.next_batch(original, scheduler, running_batch)
        ran = plan.batch_to_run is not None
        self._state.deadlock.look(scheduler, self._state.scopes, ran=ran)
        if ran:
            self._clock.begin()
        else:
            scheduler.publish_load_snapshot()  # SGLang does so after a step and when idle, not while it only waits
        return plan

    def new_prefill(self, original: Callable[..., Any], scheduler: Any, running_batch: Any, *more: Any) -> Any:
        """Compose no prefill while a local batch that has run joins the running one and it is not local's turn."""
        if self._state is not None and self._state.steps.hold_prefill:
            return no_prefill(running_batch)
        return original(scheduler, running_batch, *more)

    def with_batch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **keywords: Any) -> Any:
        """Run a batch, or process its results, under its role."""
        if self._state is None:
            return original(scheduler, batch, *more, **keywords)
        with self._state.scopes.enter(self._state.steps.batch_role(batch)):
            return original(scheduler, batch, *more, **keywords)

    def wait(self, original: Callable[..., Any], scheduler: Any) -> Any:
        """Pause while nothing runs: until the next look, only a transfer or a request can change that."""
        if self._state is not None:
            self._clock.sleep_until_request(scheduler.ipc_channels.recv_from_tokenizer)
        return original(scheduler)

    # --- what others see -----------------------------------------------------------------------------------------

    def is_fully_idle(self, original: Callable[..., Any], scheduler: Any, *more: Any, **keywords: Any) -> bool:
        """Tell whether no role has work."""
        if self._state is None:
            return bool(original(scheduler, *more, **keywords))
        return all(self._state.scopes.for_each(lambda: original(scheduler, *more, **keywords)))

    def loads(self, original: Callable[..., Any], inquirer: Any) -> Any:
        """Report the queues of every role."""
        if self._state is None:
            return original(inquirer)
        scopes = self._state.scopes
        with scopes.enter(DECODE):  # it may be asked for in the middle of a step of another role
            snapshot = original(inquirer)
        add_roles(snapshot, scopes, inquirer.get_chunked_req())
        return snapshot

    def timeouts(self, original: Callable[..., Any], scheduler: Any) -> list[Any]:
        """Look for requests of every role that have waited or run for too long."""
        if self._state is None:
            return list(original(scheduler))
        aborts = {
            abort.rid: abort for found in self._state.scopes.for_each(lambda: original(scheduler)) for abort in found
        }
        return list(aborts.values())

    def decode_budget(self, original: Callable[..., Any], queue: Any, *more: Any, **keywords: Any) -> int:
        """Return the tokens that may be allocated for requests that another server prefills: prefill keeps some."""
        budget = int(original(queue, *more, **keywords))
        if self._state is None:
            return budget
        just_reserved = keywords.get("extra_reserved_reqs", 0)
        return self._state.reserve.left(budget, queue, self._state.scopes, just_reserved)

    @contextmanager
    def _as(self, request: Any) -> Iterator[None]:
        if self._state is None:
            yield
            return
        with self._state.scopes.enter(self._state.classifier.role_of(request)):
            yield
