"""Performance models: how fast one worker is."""

from __future__ import annotations

from typing import Protocol

from pdplugins.contracts.workers import Role


class PowerTable(Protocol):
    """What a power cap does to one GPU: linear between the caps, constant outside."""

    @property
    def cap_w(self) -> tuple[float, ...]:
        """Caps, ascending; the last one is no cap."""
        ...

    @property
    def prefill_slow(self) -> tuple[float, ...]:
        """Time of a prefill step over its time without a cap, at each of `cap_w`."""
        ...

    @property
    def decode_slow(self) -> tuple[float, ...]:
        """Time of a decode step over its time without a cap, at each of `cap_w`."""
        ...

    @property
    def settle_s(self) -> float:
        """Seconds from setting a cap until the device keeps it."""
        ...

    @property
    def idle_w(self) -> float:
        """Draw of a GPU that has nothing to do."""
        ...

    @property
    def prefill_w(self) -> float:
        """Draw of prefill without a cap."""
        ...

    @property
    def decode_w(self) -> float:
        """Draw of decode without a cap."""
        ...


class PerfModel(Protocol):
    """How fast one worker is. `pdplugins.perf` implements it over measured or modelled tables.

    Every model answers the first six methods. The others return None where the model does not know the answer. A model
    that inherits from `pdplugins.types.PlainPerf` returns None from all of them unless it overrides them. Whether a
    method returns None may depend only on `tp`. Callers ask only for sizes that `tp_sizes` names.
    """

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds to prefill one prompt of `tokens` tokens at tensor-parallel size `tp`, alone in its batch."""
        ...

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        """Seconds of one decode step of `batch` requests whose mean context is `context_tokens`."""
        ...

    def transfer_s(self, tokens: float) -> float:
        """Seconds to move the KV cache of `tokens` tokens from a prefill to a decode worker."""
        ...

    def kv_capacity_tokens(self, tp: int) -> int:
        """Tokens of KV cache that one worker holds: V_mem / M_token of DOPD Eq. 11 and 13."""
        ...

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        """Tokens of KV cache that one decode step of `step_s` seconds can read: V_BW / M_token of DOPD Eq. 12."""
        ...

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        """Tensor-parallel sizes that the tables hold for `role`, ascending."""
        ...

    def dense_s(self, tokens: float, tp: int) -> float | None:
        """Seconds of a step without its attention, when it computes `tokens` tokens of prompts and decodes together."""
        ...

    def prefill_knots(self, tp: int) -> tuple[float, ...] | None:
        """Token counts between which `prefill_s` and `dense_s` are linear, ascending."""
        ...

    def decode_contexts(self, tp: int) -> tuple[float, ...] | None:
        """Mean contexts between which `decode_step_s` is linear, ascending: at least two."""
        ...

    def decode_row_s(self, batch: float, tp: int) -> tuple[float, ...] | None:
        """Decode step times of one batch size: at context zero, at each of `decode_contexts`, and at one context more.

        That context lies as far beyond the last of `decode_contexts` as the one before the last lies below it. The
        method exists for speed: a simulator needs many contexts of one batch size at once.
        """
        ...

    def power(self) -> PowerTable | None:
        """What a power cap does to one GPU."""
        ...
