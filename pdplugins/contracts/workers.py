"""The workers that serve: their roles, what they can do, and their loads as policies see them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """The phase of a request that a worker serves."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a worker can do, whatever its role is now."""

    phases: frozenset[Role] = frozenset(Role)
    """Phases that it can serve."""
    alone: bool = True
    """Whether it can serve a whole request by itself."""
    splits: bool = True
    """Whether it can go on at any token from KV cache that another worker computed."""


ANYTHING = Capabilities()
"""Of workers that do all that there is: simulated ones, and dual-role servers."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What one engine said last about its queue and its batch."""

    worker: str
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    """Prompt tokens that wait for prefill (prefill role), or context tokens of preempted requests (decode role)."""
    running_requests: float = 0.0
    running_tokens: float = 0.0
    """Prompt tokens in the current prefill step, or context tokens in the current decode step."""
    recent_ttft_s: float | None = None
    """Mean time to first token of the prompts whose prefill ended here in the last 10 s or so."""
    recent_tbt_s: float | None = None
    """Time between tokens of the requests that decode here now."""
    decode_requests: float | None = None
    """Requests that decode."""
    decode_tokens: float | None = None
    """Context of the requests that decode."""
    prefill_tokens: float | None = None
    """Prompt tokens in the current step; what waits for prefill is `queued_tokens`."""


class LoadView(Protocol):
    """The load of one worker as a router sees it; `WorkerLoad` is one. It may be live: read it, do not keep it."""

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


class WorkerView(Protocol):
    """One worker as a router sees it. It may be live, so that a router over hundreds of workers stays cheap."""

    @property
    def id(self) -> str:
        """Name that a placement uses."""
        ...

    @property
    def role(self) -> Role:
        """Phase that the worker serves now; where roles are labels it may do the other one too."""
        ...

    @property
    def load(self) -> LoadView:
        """What waits and runs there."""
        ...

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of KV cache that the worker holds."""
        ...

    @property
    def tp(self) -> int | None:
        """GPUs of the worker: its tensor-parallel size."""
        ...

    @property
    def free_kv_tokens(self) -> int | None:
        """Tokens of KV cache that new requests may take now, cached ones that would be evicted included."""
        ...

    @property
    def capabilities(self) -> Capabilities | None:
        """What the worker can do; None where the host does not know yet."""
        ...

    @property
    def cached_blocks(self) -> Container[int]:
        """Hashes of the prefix blocks that are there."""
        ...


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one role."""

    ready: int
    starting: int = 0
    draining: int = 0
    loads: tuple[WorkerLoad, ...] = ()
    """Loads of the workers that reported; fewer than `ready` when some did not."""

    @property
    def coming(self) -> int:
        """Workers that serve once every start has finished."""
        return self.ready + self.starting

    @property
    def queued_requests(self) -> float:
        """Requests that wait, over all workers that reported."""
        return sum(load.queued_requests for load in self.loads)

    @property
    def queued_tokens(self) -> float:
        """Tokens that wait, over all workers that reported."""
        return sum(load.queued_tokens for load in self.loads)

    @property
    def running_requests(self) -> float:
        """Requests in the current steps, over all workers that reported."""
        return sum(load.running_requests for load in self.loads)
