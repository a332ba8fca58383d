"""Performance models with bends, and GPUs of two kinds."""

from __future__ import annotations

from pdplugins.sim.core.worker import Hardware
from pdplugins.types import PlainPerf


class BentModel(PlainPerf):
    """A model with bends, so that closed forms have pieces to get wrong."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return 0.011 + 0.000131 * tokens + 3.1e-8 * tokens * tokens

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        bend = max(context_tokens - 300, 0) * 1.7e-6 + max(context_tokens - 700, 0) * 2.3e-6
        return 0.0093 + 0.00017 * batch + batch * (1.9e-7 * context_tokens + 0.1 * bend)

    def transfer_s(self, tokens: float) -> float:
        return 0.0031 + tokens * 5.3e-6

    def kv_capacity_tokens(self, tp: int) -> int:
        return 100_000

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e9

    def tp_sizes(self, role: object) -> tuple[int, ...]:
        return (1,)

    def decode_contexts(self, tp: int) -> tuple[float, ...]:
        return (100.0, 300.0, 700.0, 1500.0)


class SlowModel(BentModel):
    """GPUs of another kind."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        return 1.7 * super().prefill_s(tokens, tp) / tp

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return 0.6 * super().decode_step_s(batch, context_tokens, tp) / tp

    def dense_s(self, tokens: float, tp: int) -> float:
        return 0.6 * self.prefill_s(0, tp) + 0.00007 * tokens

    def transfer_s(self, tokens: float) -> float:
        return 0.0013 + tokens * 9.1e-6


SLOW = Hardware(SlowModel(), 2)
