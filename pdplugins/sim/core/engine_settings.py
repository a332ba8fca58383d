"""Settings of how an engine batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How engines batch. The defaults are vLLM's."""

    order: Literal["decode_first", "prefill_first"] = "decode_first"
    """Decodes take part in steps with prefill (vLLM, Sarathi), or wait until such a step ends (SGLang's default)."""
    step_tokens: int = 8192
    """Most tokens of one step. Prompts are cut into chunks to fit."""
    whole_prompts: bool = False
    """A prompt that does not fit into what is left of a step waits for the next one (TensorRT-LLM's default)."""
    max_batch: int = 256
    """Most requests that run at once."""
    watermark: float = 0.01
    """Share of the KV cache that must stay free when a request is admitted, so that others can grow (vLLM 0.8)."""
    block_tokens: int = 512
    """Tokens of one prefix block of the trace."""
    mixed_steps: bool = True
    """Whether prefill and decode share the work of one step; else such a step takes the sum of two."""
    mixed_step_scale: float = 1.0
    """Factor on the time that prefill adds to a step with decodes."""
    begin_s: float = 0.0
    """Work on each request before its first step here: it takes the engine's time."""
