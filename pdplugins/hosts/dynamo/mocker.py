"""The simulated workers: Dynamo's mocker engines, timed by the same performance model that the planners plan with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pdplugins.config import Config
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.workers import Role
from pdplugins.perf.npz import export_npz

BLOCK_TOKENS = 64
"""Tokens of one KV block of a worker."""
BATCHED_TOKENS = 8192
"""Most prompt tokens of one prefill step: vLLM's and the mocker's default (chunked prefill)."""
KV_BYTES_PER_TOKEN = 327_680
"""Llama 70B: 80 layers, 8 KV heads of 128, keys and values, BF16."""
KV_GB_PER_S = 64.0
"""Rate of KV transfer between two workers: the mocker's default."""
Router = Literal["round_robin", "kv_router"]
"""Dynamo's routers in its offline replay: in turn, or by load and prefix overlap."""


@dataclass(frozen=True, slots=True)
class Engines:
    """What the simulated workers are like, beyond what a `Deployment` says."""

    kv_blocks: int | None = 8000
    """KV blocks of one worker; None for what the profile of the deployment holds.

    The default is 512,000 tokens, so that KV capacity bounds nothing where something else is looked at.
    """
    router: Router = "round_robin"

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of KV cache of one worker; None for the profile's."""
        return None if self.kv_blocks is None else self.kv_blocks * BLOCK_TOKENS

    def kv_tokens_of(self, role: Role, deployment: Deployment) -> int:
        """Return the tokens of KV cache of a worker of `role`, in whole blocks."""
        tp = deployment.prefill_tp if role is Role.PREFILL else deployment.decode_tp
        told = deployment.kv_tokens if role is Role.DECODE else None
        tokens = self.kv_tokens or told or deployment.perf.kv_capacity_tokens(tp)
        return tokens // BLOCK_TOKENS * BLOCK_TOKENS

    def told(self, config: Config) -> Config:
        """Return `config` with what these workers say of themselves, where it says nothing else."""
        if config.deployment.kv_tokens is not None or self.kv_tokens is None:
            return config
        deployment = config.deployment.model_copy(update={"kv_tokens": self.kv_tokens})
        return config.model_copy(update={"deployment": deployment})


def quiet() -> None:
    """Keep Dynamo from logging every decision of a simulated hour. Only works before Dynamo is imported."""
    os.environ.setdefault("DYN_LOG", "error")


def engine_args(role: Role, engines: Engines, deployment: Deployment, npz: Path) -> dict[str, Any]:
    """Return the arguments of the mocker engines of one role."""
    return {
        "engine_type": "vllm",
        "worker_type": role.value,
        "num_gpu_blocks": engines.kv_tokens_of(role, deployment) // BLOCK_TOKENS,
        "block_size": BLOCK_TOKENS,
        "max_num_seqs": deployment.max_batch,
        "max_num_batched_tokens": BATCHED_TOKENS,
        "planner_profile_data": str(npz),
        "kv_transfer_bandwidth": KV_GB_PER_S,
        "kv_bytes_per_token": KV_BYTES_PER_TOKEN,
        "startup_time": deployment.startup_s,
    }


def bind(deployment: Deployment, engines: Engines, scratch: Path) -> Callable[..., dict[str, Any]]:
    """Return Dynamo's replay with the engines filled in: ``replay(trace, policy, prefill, decode, per_request)``.

    Imports Dynamo. `scratch` is a folder for the timing table.
    """
    from dynamo._core import run_mocker_trace_replay  # noqa: PLC0415
    from dynamo.mocker import MockEngineArgs  # noqa: PLC0415

    npz = scratch / "timing.npz"
    export_npz(deployment.perf, npz, deployment.prefill_tp, deployment.decode_tp)

    def mocker(role: Role) -> Any:
        return MockEngineArgs.from_json(json.dumps(engine_args(role, engines, deployment, npz)))

    def replay(trace: Path, policy: object, prefill: int, decode: int, per_request: Path) -> dict[str, Any]:
        report: dict[str, Any] = run_mocker_trace_replay(
            [str(trace)],
            prefill_engine_args=mocker(Role.PREFILL),
            decode_engine_args=mocker(Role.DECODE),
            num_prefill_workers=prefill,
            num_decode_workers=decode,
            router_mode=engines.router,
            report_jsonl_path=str(per_request),
            scaling_policy=policy,
        )
        return report

    return replay
