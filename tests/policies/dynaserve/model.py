"""A profile that can be reckoned by hand."""

from __future__ import annotations

from pdplugins import testing
from pdplugins.testing import LinearModel, Worker
from pdplugins.types import Deployment, Role, WorkerLoad

WEIGHTS_S, TOKEN_S, ATTENTION_S = 0.02, 1e-4, 1e-8
"""Of the profile: one reading of the weights, what a prompt token adds, and what it adds for each earlier one."""
TERMS = {
    "prefill_fixed_s": WEIGHTS_S,
    "prefill_token_s": TOKEN_S,
    "prefill_square_s": ATTENTION_S / 2,
    "decode_fixed_s": WEIGHTS_S,
    "decode_request_s": TOKEN_S / 10,
    "decode_token_s": 10 * ATTENTION_S,
    "transfer_fixed_s": 1e-3,
}


class Model(LinearModel):
    """The profile, with as much KV cache as is wanted."""

    def __init__(self, kv_tokens: int = 200_000) -> None:
        super().__init__(**TERMS, kv_tokens=kv_tokens)


class DenseModel(Model):
    """The same, knowing what of it is not attention."""

    def dense_s(self, tokens: float, tp: int) -> float:
        return WEIGHTS_S + TOKEN_S * tokens


def deployment_of(perf: LinearModel) -> Deployment:
    return testing.deployment(perf, tpot_s=0.1)


def worker(
    name: str, role: Role = Role.PREFILL, load: WorkerLoad | None = None, kv_capacity_tokens: int = 200_000
) -> Worker:
    return Worker(name, role, load or WorkerLoad("w"), kv_capacity_tokens)
