"""What is known about each set of measured rows: how its clients sent requests, and how its engine was set up.

These are inputs and not coefficients. The TTFT of a row depends on them as much as on any kernel, but the CSV does not
contain them. Each entry names its origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Protocol:
    """How the clients of one source send requests. All start at once, and each sends the next one after its answer."""

    requests: int
    """Requests of each client."""
    shortest: float
    """Lengths are uniform between the shares `shortest` and `longest` of the nominal length."""
    longest: float
    statistic: Literal["mean", "median"]
    """The statistic of TTFT and TPOT over the requests that the row reports."""
    slots: int = 0
    """Places in the engine's batch beyond the number of clients; negative where one client always waited."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """How one serving engine batches."""

    order: Literal["decode_first", "prefill_first"]
    whole_prompts: bool
    """Prompts are not cut into chunks."""
    reserves_answers: bool
    """A request is admitted only with enough free KV capacity for its longest answer (no preemption)."""
    reason: str


ENGINES = {
    "vllm": EngineKind("decode_first", False, False, "V1 scheduler: mixed steps of up to 8192 tokens, preemption"),
    "trtllm": EngineKind("decode_first", True, True, "GUARANTEED_NO_EVICT, no chunked context: the defaults"),
    "sglang": EngineKind("prefill_first", False, False, "prefill has priority, decodes wait: the default"),
}

_INFERENCE_MAX = Protocol(
    10,
    0.8,
    1.0,
    "mean",
    reason="as published: InferenceMAX runs benchmark_serving.py with --num-prompts 10 times the concurrency, "
    "--request-rate inf and --random-range-ratio 0.8, which draws every length between 0.8 of the nominal one and it",
)
_GENAI_PERF = Protocol(
    10,
    1.0,
    1.0,
    "mean",
    reason="as published: aiconfigurator's own runner calls genai-perf with --request-count 10 times the concurrency, "
    "no spread of lengths, and reports means; equal lengths keep the clients in lock-step",
)
_UNLOCKED = Protocol(
    10,
    0.9,
    1.1,
    "mean",
    slots=-1,
    reason="genai-perf as above, but out of lock-step (a tenth of spread stands for what delays answers), and one "
    "client always waits for a place: at few clients TTFT grows as answer time over clients; chosen of 18 protocols on "
    "the rows that the coefficients are fitted on",
)
_FIVE = Protocol(
    5,
    0.9,
    1.1,
    "mean",
    slots=-1,
    reason="nothing published fits its shapes; chosen of the same 18 protocols on the rows that are fitted on",
)
_CACHED = Protocol(10, 0.8, 1.2, "mean", reason="chosen in the same way; no protocol explains these rows")
PROTOCOLS = {
    "h100/llama-3.1-70b-fp8-vllm": _INFERENCE_MAX,
    "h200/llama-3.1-70b-fp8-trtllm": _INFERENCE_MAX,
    "h200/llama-3.1-70b-fp8-vllm": _INFERENCE_MAX,
    "h100/llama-3.1-8b-trtllm": _UNLOCKED,
    "h100/qwen3-32b-fp8-trtllm": _UNLOCKED,
    "h100/qwen3-32b-fp8-vllm": _UNLOCKED,
    "h100/qwen3-32b-vllm": _UNLOCKED,
    "h100/qwen3-32b-sglang": _GENAI_PERF,
    "h200/llama-3.1-8b-fp8-sglang": _FIVE,
    "h200/llama-3.1-8b-fp8-vllm": _CACHED,
}
"""By `pdplugins.studies.validate.rows.Row.source`."""
SPREADS = ((1.0, 1.0), (0.9, 1.1), (0.8, 1.2))
CANDIDATES = tuple(
    Protocol(requests, shortest, longest, "mean", slots)
    for requests in (3, 5, 10)
    for shortest, longest in SPREADS
    for slots in (0, -1)
)
"""Protocols that were tried where nothing is published: see `pdplugins.studies.validate.report.chosen`."""
