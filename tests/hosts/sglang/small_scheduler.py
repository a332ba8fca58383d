"""A scheduler in small, with the hooks of the dual-role instance: what SGLang's own methods do is recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pdplugins.config import SglangConfig
from pdplugins.hosts.sglang import dual as duals
from pdplugins.hosts.sglang.dual import DualRole
from pdplugins.hosts.sglang.hooking import HookInstaller
from pdplugins.hosts.sglang.roles import LOCAL_HOST
from pdplugins.hosts.sglang.waiting import Clock


class Mode(Enum):
    NULL = "null"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(eq=False)
class Req:
    rid: str
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    seqlen: int = 100
    num_matched_prefix_tokens: int = 0
    prefix_len: int = 0
    last_node: Any = None
    chunks: int = 1
    """Prefill steps that it still needs."""
    output: int = 1000
    """Decode steps that it still needs."""
    time_stats: Any = field(default_factory=lambda: SimpleNamespace(prefill_bootstrap_queue_entry_time=0.0))
    disagg_kv_sender: Any = None
    cached: int = 0
    """Tokens of it that the radix cache has."""

    def init_next_round_input(self, tree_cache: Any) -> None:
        self.prefix_len = self.cached


def local(rid: str) -> Req:
    return Req(rid, LOCAL_HOST)


def prefill(rid: str) -> Req:
    return Req(rid, "127.0.0.1", 8998, 7)


def hand_over(rid: str) -> Req:
    """All of it is in the radix cache; SGLang computes the last token in any case."""
    return Req(rid, "127.0.0.1", 8998, 7, seqlen=100, cached=99)


def decode(rid: str) -> Req:
    return Req(rid, "10.1.1.1", 8998, 7)


@dataclass
class Batch:
    reqs: list[Req]
    mode: str = "extend"
    decoding_reqs: list[Req] | None = None
    batch_is_full: bool = True

    @property
    def forward_mode(self) -> Any:
        return SimpleNamespace(is_extend=lambda: self.mode == "extend", is_decode=lambda: self.mode == "decode")

    def is_empty(self) -> bool:
        return not self.reqs


@dataclass
class Plan:
    batch_to_run: Batch | None
    running_batch: Batch


@dataclass(eq=False)
class Scheduler:
    """Composes prefill batches of one prompt, of the queue that is bound, and decode batches of the rest.

    Prompts that are cached take no room in a batch.
    """

    waiting_queue: list[Req] = field(default_factory=list)
    chunked_req: Req | None = None
    last_batch: Batch | None = None
    running_batch: Batch = field(default_factory=lambda: Batch([], "decode"))
    page_size: int = 1
    free_tokens: int = 10_000
    max_running_requests: int = 1000
    is_mixed_chunk: bool = True
    is_generation: bool = True
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server_args = SimpleNamespace(
            host="10.0.0.7",
            disaggregation_mode="decode",
            disaggregation_transfer_backend="nixl",
            disaggregation_decode_enable_radix_cache=True,
        )
        self.tree_cache = SimpleNamespace(root_node=object(), evictable_size=lambda: 0)
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: self.free_tokens)
        self.disagg_decode_prealloc_queue = SimpleNamespace(
            retracted_queue=[], kv_manager=SimpleNamespace(waiting_timeout=300)
        )
        self.disagg_decode_transfer_queue = SimpleNamespace(queue=[])

    def init_disaggregation(self) -> None:
        self.disaggregation_mode = Mode(self.server_args.disaggregation_mode)
        self.disagg_prefill_bootstrap_queue: Any = None
        self.disagg_prefill_inflight_queue: list[Req] | None = None
        self.buffers = object()
        if self.disaggregation_mode is Mode.PREFILL:
            self.disagg_prefill_bootstrap_queue = SimpleNamespace(
                queue=[],
                pop_bootstrapped=self.pop_bootstrapped,
                kv_manager=SimpleNamespace(local_ip="10.0.0.7", bootstrap_timeout=300),
                bootstrap_port=8998,
            )
            self.disagg_prefill_inflight_queue = []

    def pop_bootstrapped(self) -> list[Req]:
        queue = self.disagg_prefill_bootstrap_queue.queue
        met, queue[:] = list(queue), []
        return met

    def process_disagg_prefill_inflight_queue(self) -> None:
        self.calls.append(("poll", self.disaggregation_mode))

    def process_prefill_chunk(self, last_batch: Batch, running_batch: Batch) -> None:
        self.calls.append(("send", [req.rid for req in last_batch.reqs]))

    def get_next_disagg_prefill_batch_to_run(self, running_batch: Batch, last_batch: Batch | None) -> Plan:
        assert self.disaggregation_mode is Mode.PREFILL
        assert not self.is_mixed_chunk
        if last_batch is not None:
            self.process_prefill_chunk(last_batch, running_batch)
        return Plan(self.prefill_batch(), running_batch)

    def get_next_batch_to_run(self, running_batch: Batch, last_batch: Batch | None) -> Plan:
        assert self.disaggregation_mode is Mode.NULL
        if last_batch is not None:
            running_batch.reqs.extend(req for req in last_batch.reqs if req is not self.chunked_req)
        plan = self.dual.new_prefill(lambda s, r: Plan(s.prefill_batch(), r), self, running_batch)
        return plan if plan.batch_to_run else Plan(self.decode_batch(running_batch), running_batch)

    def get_next_disagg_decode_batch_to_run(self, running_batch: Batch) -> Plan:
        assert self.disaggregation_mode is Mode.DECODE
        assert self.chunked_req is None
        places = self.max_running_requests - len(running_batch.reqs)
        running_batch.reqs.extend(self.waiting_queue[:places])
        self.waiting_queue = self.waiting_queue[places:]
        return Plan(self.decode_batch(running_batch), running_batch)

    def prefill_batch(self) -> Batch | None:
        if self.chunked_req is None and not self.waiting_queue:
            return None
        small: list[Req] = []
        while self.chunked_req is None and self.waiting_queue and self.waiting_queue[0].cached:
            small.append(self.waiting_queue.pop(0))
        if self.chunked_req is None and not self.waiting_queue:
            return Batch(small)
        req = self.chunked_req or self.waiting_queue.pop(0)
        req.chunks -= 1
        self.chunked_req = req if req.chunks else None
        return Batch([*small, req])

    def decode_batch(self, running_batch: Batch) -> Batch | None:
        batch = Batch(list(running_batch.reqs), "decode")
        for req in batch.reqs:
            req.output -= 1
        running_batch.reqs = [req for req in batch.reqs if req.output]
        return batch if batch.reqs else None

    def enqueue(self, req: Req, is_retracted: bool = False) -> None:
        if self.disaggregation_mode is Mode.PREFILL:
            self.disagg_prefill_bootstrap_queue.queue.append(req)
        else:
            self.waiting_queue.append(req)

    def abort(self, request: Any) -> None:
        self.calls.append(("abort", self.disaggregation_mode))
        self.waiting_queue = [req for req in self.waiting_queue if req.rid != request.rid]

    def _abort_on_waiting_timeout(self) -> None:
        assert self.disaggregation_mode is Mode.NULL  # what else waits holds KV cache that this would not free
        self.calls.append(("waiting timeouts", rids(Batch(self.waiting_queue))))

    def _abort_on_running_timeout(self, running_batch: Batch) -> None:
        self.calls.append(("running timeouts", rids(running_batch)))

    def publish_load_snapshot(self) -> None:
        self.calls.append(("load", None))

    def is_fully_idle(self) -> bool:
        queue = self.disagg_prefill_bootstrap_queue
        return not self.waiting_queue and not (self.disaggregation_mode is Mode.PREFILL and queue.queue)

    def step(self) -> Batch | None:
        """One turn of a decode server's event loop."""
        plan = self.dual.next_batch(Scheduler.get_next_disagg_decode_batch_to_run, self, self.running_batch)
        self.running_batch, self.last_batch = plan.running_batch, plan.batch_to_run
        return self.last_batch

    dual: Any = None


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two things that the hooks import from SGLang."""

    @contextmanager
    def prefill_mode(arguments: Any) -> Iterator[None]:
        arguments.disaggregation_mode = "prefill"
        yield
        arguments.disaggregation_mode = "decode"

    batches = ModuleType("sglang.srt.managers.schedule_batch")
    batches.NextBatchPlan = Plan  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, batches.__name__, batches)
    monkeypatch.setattr(duals, "prefill_mode", prefill_mode)


def build(scheduler: Scheduler | None = None, *, strict: bool = True, burst: int = 1, **arguments: Any) -> Scheduler:
    scheduler = scheduler or Scheduler()
    vars(scheduler.server_args).update(arguments)
    scheduler.dual = DualRole(SglangConfig(prefill_burst=burst), HookInstaller(["dual_role"], strict=strict), Clock(0))
    scheduler.dual.build(Scheduler.init_disaggregation, scheduler)
    return scheduler


def add(scheduler: Scheduler, *reqs: Req, retracted: bool = False) -> None:
    for req in reqs:
        scheduler.dual.enqueue(Scheduler.enqueue, scheduler, req, retracted)


def rids(batch: Batch | None) -> list[str]:
    return [] if batch is None else [req.rid for req in batch.reqs]
