"""The fixed facts about a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.request import Slo


@dataclass(frozen=True, slots=True)
class Deployment:
    """What stays fixed while policies run: the objectives, the hardware and its limits."""

    slo: Slo
    perf: PerfModel
    gpu_budget: int
    """GPUs that prefill and decode workers may use together."""
    prefill_tp: int
    """GPUs of one prefill worker."""
    decode_tp: int
    """GPUs of one decode worker."""
    startup_s: float
    """Seconds from the decision to start a worker until it serves."""
    max_batch: int
    """Largest decode batch of one worker (its CUDA-graph batch size): cc_g of DOPD Eq. 14."""
    kv_tokens: int | None = None
    """Tokens of KV cache of one decode worker, as its engine reports them; None for the profile's (DOPD Eq. 11)."""

    any_role: bool = False
    """Whether every worker can do both phases, so that a role may have no worker of its own."""

    mixed_steps: bool = True
    """Whether engines prefill and decode in one step. Where they do not, a step of prefill and the decode step after it
    count as one, which takes the sum of their times."""

    def gpus(self, prefill: int, decode: int) -> int:
        """Return the GPUs that `prefill` plus `decode` workers use."""
        return prefill * self.prefill_tp + decode * self.decode_tp
