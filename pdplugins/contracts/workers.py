"""Workers as policies see them: their roles, capabilities and loads."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """The role of a worker: which phase of requests it serves."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a worker can do, independently of its present role."""

    phases: frozenset[Role] = frozenset(Role)
    """Phases that it can serve."""
    alone: bool = True
    """Whether it can serve a whole request by itself."""
    splits: bool = True
    """Whether it can continue at any token from a KV cache that another worker computed."""


ANYTHING = Capabilities()
"""For a worker that can do everything: a simulated worker, or a dual-role server."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The latest report of one engine on its queue and its batch."""

    worker: str
    """Its `WorkerView.id`."""
    queued_requests: float = 0.0
    """Requests that wait: for prefill (prefill role), or preempted ones (decode role). What planners see of a decode
    worker has those too that wait for KV capacity there after prefill."""
    queued_tokens: float = 0.0
    """Prompt tokens that wait for prefill (prefill role), or context tokens of those requests (decode role)."""
    running_requests: float = 0.0
    """Requests in the current step."""
    running_tokens: float = 0.0
    """Prompt tokens in the current prefill step, or context tokens in the current decode step."""
    recent_ttft_s: float | None = None
    """Mean time to first token of the prompts whose prefill ended here in about the last 10 s."""
    recent_tbt_s: float | None = None
    """Time between tokens of the requests that decode here now."""
    decode_requests: float | None = None
    """Requests that decode."""
    decode_tokens: float | None = None
    """Context of the requests that decode."""
    prefill_tokens: float | None = None
    """Prompt tokens in the current step. Tokens that still wait for prefill are in `queued_tokens`. A host that sees
    no steps, but each prompt until its first token, has all of them there and says 0 here."""
    prefill_history_tokens: float | None = None
    """Tokens that the KV cache has of the prompts that wait for prefill or are in the current step: histories of
    sessions, cached prefixes and earlier chunks. They are not computed again, but attention over them takes time."""


class LoadView(Protocol):
    """The load of one worker as a router sees it, such as a `WorkerLoad`. It may be live, so read it anew each time."""

    @property
    def worker(self) -> str: ...  # noqa: D102 - see WorkerLoad
    @property
    def queued_requests(self) -> float: ...  # noqa: D102
    @property
    def queued_tokens(self) -> float: ...  # noqa: D102
    @property
    def running_requests(self) -> float: ...  # noqa: D102
    @property
    def running_tokens(self) -> float: ...  # noqa: D102
    @property
    def recent_ttft_s(self) -> float | None: ...  # noqa: D102
    @property
    def recent_tbt_s(self) -> float | None: ...  # noqa: D102
    @property
    def decode_requests(self) -> float | None: ...  # noqa: D102
    @property
    def decode_tokens(self) -> float | None: ...  # noqa: D102
    @property
    def prefill_tokens(self) -> float | None: ...  # noqa: D102
    @property
    def prefill_history_tokens(self) -> float | None: ...  # noqa: D102


class WorkerView(Protocol):
    """One worker as a router sees it. It may be live: then a host need not copy hundreds of workers per decision."""

    @property
    def id(self) -> str:
        """Name of the worker in placements."""
        ...

    @property
    def role(self) -> Role:
        """Phase that the worker serves now. Where roles are labels, it may also serve the other one."""
        ...

    @property
    def load(self) -> LoadView:
        """Its queued and running requests."""
        ...

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of KV cache that the worker holds; 0 while the host does not know."""
        ...

    @property
    def tp(self) -> int | None:
        """GPUs of the worker: its tensor-parallel size."""
        ...

    @property
    def free_kv_tokens(self) -> int | None:
        """Tokens of KV cache that new requests may take now, including cached tokens that can be evicted."""
        ...

    @property
    def capabilities(self) -> Capabilities | None:
        """What the worker can do; None while the host does not know."""
        ...

    @property
    def cached_blocks(self) -> Container[int]:
        """Hashes of the prefix blocks in its KV cache."""
        ...


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one role."""

    ready: int
    """Workers that take new work."""
    starting: int = 0
    """Workers that start, change to this role, or wait for GPUs."""
    draining: int = 0
    """Workers that finish their requests and take no new ones."""
    loads: tuple[WorkerLoad, ...] = ()
    """Loads of the workers that reported. There are fewer than `ready` when some did not report."""

    @property
    def coming(self) -> int:
        """Number of workers once every start has finished."""
        return self.ready + self.starting

    @property
    def queued_requests(self) -> float:
        """Waiting requests of all workers that reported."""
        return sum(load.queued_requests for load in self.loads)

    @property
    def queued_tokens(self) -> float:
        """Waiting tokens of all workers that reported."""
        return sum(load.queued_tokens for load in self.loads)

    @property
    def running_requests(self) -> float:
        """Requests in the current steps of all workers that reported."""
        return sum(load.running_requests for load in self.loads)
