"""How fast one worker is."""

from __future__ import annotations

from typing import Protocol

from pdplugins.contracts.workers import Role


class PerfModel(Protocol):
    """How fast one worker is. `pdplugins.perf` implements it over measured or modelled tables."""

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
