"""What policies see of a simulated worker: a live, read-only view whose values are computed only when read."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

from pdplugins.contracts.workers import ANYTHING, Capabilities, Role, WorkerLoad
from pdplugins.sim.core.clock import Events, seconds
from pdplugins.sim.core.gauges import Gauges
from pdplugins.sim.core.window import Recent


class Shown(Protocol):
    """What a view shows of an engine. `pdplugins.sim.core.engine.Engine` documents each member."""

    events: Events
    first_tokens: Recent
    gauges: Gauges

    def free_tokens(self) -> int: ...  # noqa: D102
    def prefill_history(self) -> int: ...  # noqa: D102
    def settle(self) -> None: ...  # noqa: D102


class LiveLoad:
    """A `pdplugins.types.LoadView` that the engine keeps up to date."""

    __slots__ = ("_engine", "queued_requests", "queued_tokens", "running_requests", "worker")

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.queued_requests = 0
        self.queued_tokens = 0
        self.running_requests = 0
        self._engine: Shown | None = None

    def watch(self, engine: Shown) -> None:
        """Take `running_tokens` from `engine`."""
        self._engine = engine

    @property
    def running_tokens(self) -> int:
        """Tokens of the step in progress: its prefill chunks, and the context of requests that decode or join next."""
        return self._engine.gauges.running_tokens() if self._engine is not None else 0

    @property
    def recent_ttft_s(self) -> float | None:
        """Mean time to first token of the prompts whose prefill ended here in the last 10 s."""
        return self._engine.first_tokens.mean_s(self._engine.events.now) if self._engine is not None else None

    @property
    def recent_tbt_s(self) -> float | None:
        """Time between tokens of the requests that decode now; None when there are none."""
        return seconds(self._engine.gauges.decode_gap()) or None if self._engine is not None else None

    @property
    def decode_requests(self) -> int:
        """Requests that decode or join the next step."""
        return self._engine.gauges.decode_requests() if self._engine is not None else 0

    @property
    def decode_tokens(self) -> int:
        """Context of those requests."""
        return self._engine.gauges.decode_tokens() if self._engine is not None else 0

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens in the current step."""
        return self._engine.gauges.prefill_tokens() if self._engine is not None else 0

    @property
    def prefill_history_tokens(self) -> int:
        """Tokens that the KV cache has of the prompts that wait or are in the current step. Counted when it is read."""
        return self._engine.prefill_history() if self._engine is not None else 0

    def frozen(self) -> WorkerLoad:
        """Return a copy that does not change."""
        return WorkerLoad(
            self.worker,
            self.queued_requests,
            self.queued_tokens,
            self.running_requests,
            self.running_tokens,
            self.recent_ttft_s,
            self.recent_tbt_s,
            self.decode_requests,
            self.decode_tokens,
            self.prefill_tokens,
            self.prefill_history_tokens,
        )


class LiveView:
    """A `pdplugins.types.WorkerView` of one simulated worker."""

    __slots__ = ("_blocks", "_engine", "capabilities", "id", "kv_capacity_tokens", "load", "role", "tp")

    def __init__(self, worker: str, role: Role, tp: int, kv_capacity_tokens: int, blocks: Container[int]) -> None:
        self.id = worker
        self.role = role
        self.tp: int | None = tp
        self.capabilities: Capabilities | None = ANYTHING
        self.load = LiveLoad(worker)
        self.kv_capacity_tokens = kv_capacity_tokens
        self._blocks = blocks
        self._engine: Shown | None = None

    def watch(self, engine: Shown) -> None:
        """Show `engine`."""
        self._engine = engine
        self.load.watch(engine)

    @property
    def free_kv_tokens(self) -> int | None:
        """Tokens of KV cache that new requests may take now."""
        return self._engine.free_tokens() if self._engine is not None else None

    @property
    def cached_blocks(self) -> Container[int]:
        """Hashes of the prefix blocks in the worker's KV cache."""
        if self._engine is not None:
            self._engine.settle()
        return self._blocks
