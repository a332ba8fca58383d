"""How the engine of a row batches, as the tool that measured it sets it up."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from functools import partial

from pdplugins.contracts.perf import PerfModel
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.studies.measured.balance import AttentionBalance
from pdplugins.studies.measured.rows import Row

MOST_BATCH = 4096
FLOOR_SINCE = date(2026, 1, 22)
"""From this day on InferenceMAX gives TensorRT-LLM on H200 at least `FLOOR_TOKENS` a step, without guesses."""
FLOOR_TOKENS = 8192
PREFILL_TOKENS = {("h100", 1024): 2048, ("h100", 8192): 8224, ("h200", 1024): 8192, ("h200", 8192): 16_640}
"""By GPU and prompt: `max_num_tokens` of TensorRT-LLM's prefill workers, of each group if attention is data-parallel.

InferenceMAX's deployments of two pools name recipes of srt-slurm (github.com/NVIDIA/srt-slurm, recipes/trtllm).
"""
GRAPHS_WITH_PROMPTS = frozenset({"vllm"})
"""Engines that replay CUDA graphs for pieces of steps with prompts; the others launch each kernel of such a step."""


def groups_of(layout: str) -> int:
    """Return the groups of data-parallel attention of a layout such as ``dp8+ep8``."""
    found = re.search(r"dp(\d+)", layout)
    return int(found[1]) if found else 1


def engine_of(row: Row, decode: PerfModel, gpus: int) -> EngineSettings:
    """Return how the workers of `row` batch.

    :param decode: step times of the workers that decode, on `gpus` GPUs each.
    """
    whole = row.engine == "trtllm"
    batch = min(row.clients, row.pools.decode_batch or MOST_BATCH)
    if whole:  # GUARANTEED_NO_EVICT: a request is admitted with free KV capacity for its whole answer
        held = decode.kv_capacity_tokens(gpus) // (row.isl_tokens + row.osl_tokens)
        batch = min(batch, max(held, 1))
    _, layout = row.pools.prefill or row.pools.decode
    return EngineSettings(
        order="prefill_first" if row.engine == "sglang" and row.inference_max else "decode_first",
        step_tokens=group_tokens(row) * groups_of(layout),
        whole_prompts=whole,
        max_batch=batch,
    )


def balance_of(row: Row) -> Callable[[], AttentionBalance] | None:
    """Return what makes the batch scheduler of each worker; None where prompts start first come, first served."""
    groups = groups_of(row.pools.decode[1])
    if row.pools.prefill is not None or groups == 1 or row.engine != "trtllm" or not row.inference_max:
        return None
    return partial(AttentionBalance, groups, group_tokens(row))


def group_tokens(row: Row) -> int:
    """Return the most tokens of a step in one group of data-parallel attention; other layouts are one group."""
    if not row.inference_max:  # aiconfigurator's generator
        return row.isl_tokens + 1500 + (0 if row.engine == "sglang" else row.clients)
    if row.engine == "vllm":
        return 8192
    if row.engine == "sglang":
        return 32_768
    if row.model == "gpt-oss-120b":
        return 20_000
    if row.pools.prefill is not None:
        return PREFILL_TOKENS[row.system, row.isl_tokens]
    batch = row.clients
    if guesses := row.pools.draft_tokens:
        batch = (guesses + 1) * max(row.clients // groups_of(row.pools.decode[1]), 1)
    tokens = -(-(batch + row.isl_tokens + 64) // 64) * 64
    return max(tokens, FLOOR_TOKENS) if not guesses and row.day is not None and row.day >= FLOOR_SINCE else tokens
