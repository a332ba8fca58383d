"""A performance model whose times a reader can compute by hand."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.workers import Role
from pdplugins.perf.plain import PlainPerf


@dataclass(frozen=True)
class LinearModel(PlainPerf):
    """A `pdplugins.types.PerfModel` whose times are short sums. Every term that is not given is zero.

    * Prefill of n tokens: ``prefill_fixed_s + n prefill_token_s + n^2 prefill_square_s``.
    * A decode step of b requests whose mean context is c tokens:
      ``decode_fixed_s + b (decode_request_s + c decode_token_s)``.
    * A transfer of n tokens: ``transfer_fixed_s + n transfer_token_s``.
    """

    prefill_fixed_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_square_s: float = 0.0
    """Seconds for each token times each token: attention."""
    decode_fixed_s: float = 0.0
    decode_request_s: float = 0.0
    decode_token_s: float = 0.0
    """Seconds for each token of context of each request."""
    transfer_fixed_s: float = 0.0
    transfer_token_s: float = 0.0
    kv_tokens: int = 100_000
    """Tokens of KV cache that a worker of one GPU holds."""
    bandwidth_tokens: float = 1e9
    """Tokens of KV cache that a decode step can read, however short it is."""
    tps: tuple[int, ...] = (1,)
    """Tensor-parallel sizes that there are."""
    scales: bool = False
    """Whether n GPUs compute n times as fast and hold n times as much; else as one."""

    def prefill_s(self, tokens: float, tp: int) -> float:
        """Seconds to prefill one prompt."""
        time_s = self.prefill_fixed_s + tokens * self.prefill_token_s + tokens * tokens * self.prefill_square_s
        return time_s / self._gpus(tp)

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        """Seconds of one decode step."""
        time_s = self.decode_fixed_s + batch * (self.decode_request_s + context_tokens * self.decode_token_s)
        return time_s / self._gpus(tp)

    def transfer_s(self, tokens: float) -> float:
        """Seconds to move a KV cache."""
        return self.transfer_fixed_s + tokens * self.transfer_token_s

    def kv_capacity_tokens(self, tp: int) -> int:
        """Tokens of KV cache of one worker."""
        return self.kv_tokens * self._gpus(tp)

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        """Tokens that one decode step can read."""
        return self.bandwidth_tokens

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        """Return `tps`, the same for both roles."""
        return self.tps

    def _gpus(self, tp: int) -> int:
        return tp if self.scales else 1


def flat_model(
    prefill_s: float = 0.1, decode_step_s: float = 0.01, kv_tokens: int = 100_000, tps: tuple[int, ...] = (1, 2)
) -> LinearModel:
    """Return a model with the same times whatever is computed, and transfers that take none."""
    return LinearModel(
        prefill_fixed_s=prefill_s, decode_fixed_s=decode_step_s, kv_tokens=kv_tokens, bandwidth_tokens=1e6, tps=tps
    )
