"""What is known about each set of measured rows: how its clients sent requests, and how its engine was set up.

These are inputs and not coefficients: the TTFT of a row depends on them as much as on any kernel, but the CSV does not
contain them. One rule decides them: what the tool that measured the rows publishes holds, for all rows of a source. No
entry was chosen for its errors. `pdplugins.studies.validate.places` has the one thing that nobody publishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pdplugins.studies.validate.rows import Row


@dataclass(frozen=True, slots=True)
class Client:
    """How the clients of one source send requests. All start at once, and each sends the next one after its answer."""

    requests: int
    """Requests of each client."""
    shortest: float
    """Lengths are uniform between the share `shortest` of the nominal length and all of it."""
    reason: str


@dataclass(frozen=True, slots=True)
class EngineKind:
    """How one serving engine batches."""

    order: Literal["decode_first", "prefill_first"]
    whole_prompts: bool
    """Prompts are not cut into chunks."""
    reserves_answers: bool
    """A request is admitted only with enough free KV capacity for its longest answer (no preemption)."""
    reason: str
    step: Literal["fixed", "prompt", "prompt and batch"] = "fixed"
    """What the most tokens of a step follow from."""

    def step_tokens(self, row: Row) -> int:
        """Return the most tokens of a step."""
        if self.step == "fixed":
            return FIXED_STEP_TOKENS
        return row.isl_tokens + GENERATED_TOKENS + (row.clients if self.step == "prompt and batch" else 0)


@dataclass(frozen=True, slots=True)
class Source:
    """The client and the engine of one set of rows."""

    client: Client
    engine: EngineKind


FIXED_STEP_TOKENS = 8192
GENERATED_TOKENS = 1500
"""Tokens beyond a prompt, and beyond one for each request of a batch, that aiconfigurator gives to a step."""

INFERENCE_MAX = Client(
    10,
    0.8,
    "InferenceMAX runs benchmark_serving.py with --num-prompts 10 times the concurrency, --request-rate inf and "
    "--random-range-ratio 0.8, which draws every length between 0.8 of the nominal one and it",
)
AICONFIGURATOR = Client(
    10,
    1.0,
    "aiconfigurator's own runner (src/aiconfigurator/eval, until March 2026) calls genai-perf, later aiperf, with "
    "--request-count 10 times the concurrency, standard deviations of 0 and a prompt of its own for every request",
)
VLLM = EngineKind("decode_first", False, False, "V1 scheduler: mixed steps of up to 8192 tokens, preemption")
TRTLLM = EngineKind("decode_first", True, True, "GUARANTEED_NO_EVICT, no chunked context: the defaults")
SGLANG = EngineKind("prefill_first", False, False, "prefill has priority, decodes wait: the default")
GENERATED = "; as aiconfigurator sets it up: max_num_tokens is the batch, the prompt and 1500 (its generator's rules)"
GENERATED_VLLM = EngineKind("decode_first", False, False, VLLM.reason + GENERATED, "prompt and batch")
GENERATED_TRTLLM = EngineKind("decode_first", True, True, TRTLLM.reason + GENERATED, "prompt and batch")
GENERATED_SGLANG = EngineKind(
    "decode_first",
    False,
    False,
    "aiconfigurator sets it up with --enable-mixed-chunk and max_prefill_tokens of the prompt and 1500, since it "
    "supports SGLang (its generator's rules; the rows of version 0.5.1 are older and have the defaults)",
    "prompt",
)
SOURCES = {
    "h100/llama-3.1-70b-fp8-vllm": Source(INFERENCE_MAX, VLLM),
    "h200/llama-3.1-70b-fp8-trtllm": Source(INFERENCE_MAX, TRTLLM),
    "h200/llama-3.1-70b-fp8-vllm": Source(INFERENCE_MAX, VLLM),
    "h100/llama-3.1-8b-trtllm": Source(AICONFIGURATOR, GENERATED_TRTLLM),
    "h100/qwen3-32b-fp8-trtllm": Source(AICONFIGURATOR, GENERATED_TRTLLM),
    "h100/qwen3-32b-fp8-vllm": Source(AICONFIGURATOR, GENERATED_VLLM),
    "h100/qwen3-32b-vllm": Source(AICONFIGURATOR, GENERATED_VLLM),
    "h100/qwen3-32b-sglang": Source(AICONFIGURATOR, SGLANG),
    "h200/llama-3.1-8b-fp8-sglang": Source(AICONFIGURATOR, GENERATED_SGLANG),
    "h200/llama-3.1-8b-fp8-vllm": Source(AICONFIGURATOR, GENERATED_VLLM),
}
"""By `pdplugins.studies.validate.rows.Row.source`."""
