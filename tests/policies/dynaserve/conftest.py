"""A profile that can be reckoned by hand, and workers that can be moved about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pdplugins.types import Capabilities, Deployment, PlainPerf, Role, Slo, WorkerLoad

WEIGHTS_S, TOKEN_S, ATTENTION_S = 0.02, 1e-4, 1e-8
"""Of the profile: one reading of the weights, what a prompt token adds, and what it adds for each earlier one."""


class Model(PlainPerf):
    """prefill(t) = weights + token t + attention t^2 / 2; decode(b, c) = weights + b (token / 10 + attention c 10)."""

    def __init__(self, kv_tokens: int = 200_000) -> None:
        self._kv = kv_tokens

    def prefill_s(self, tokens: float, tp: int) -> float:
        return WEIGHTS_S + TOKEN_S * tokens + ATTENTION_S * tokens * tokens / 2

    def decode_step_s(self, batch: float, context_tokens: float, tp: int) -> float:
        return WEIGHTS_S + batch * (TOKEN_S / 10 + 10 * ATTENTION_S * context_tokens)

    def transfer_s(self, tokens: float) -> float:
        return 1e-3

    def kv_capacity_tokens(self, tp: int) -> int:
        return self._kv

    def kv_bandwidth_tokens(self, step_s: float, tp: int) -> float:
        return 1e6

    def tp_sizes(self, role: Role) -> tuple[int, ...]:
        return (1,)


class DenseModel(Model):
    """The same, knowing what of it is not attention."""

    def dense_s(self, tokens: float, tp: int) -> float:
        return WEIGHTS_S + TOKEN_S * tokens


@dataclass
class Worker:
    """A `WorkerView` of a test."""

    id: str
    role: Role = Role.PREFILL
    load: WorkerLoad = field(default_factory=lambda: WorkerLoad("w"))
    kv_capacity_tokens: int = 200_000
    cached_blocks: tuple[int, ...] = ()
    tp: int | None = None
    capabilities: Capabilities | None = None
    free_kv_tokens: int | None = None


def deployment_of(model: Model, tbt_s: float = 0.1) -> Deployment:
    return Deployment(Slo(2.0, tbt_s), model, 8, 1, 1, 30.0, 256)


@pytest.fixture
def deployment() -> Deployment:
    return deployment_of(Model())


@pytest.fixture
def root() -> Path:
    return Path(__file__).parents[3]
