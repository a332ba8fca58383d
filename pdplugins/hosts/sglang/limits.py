"""What the dual-role instance does not support, with the reason: refused at start, not discovered later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_STATE = "its state is not kept per role"
_MOVE = "it moves KV cache that other roles hold"
_UNTESTED = "never run with several roles in one process"


@dataclass(frozen=True, slots=True)
class Limit:
    """One option of SGLang: the values that work, and why no other does."""

    option: str
    allowed: tuple[Any, ...]
    why: str

    def refusal(self, arguments: Any) -> str | None:
        """Return the reason to refuse `arguments`, or None."""
        value = getattr(arguments, self.option, self.allowed[0])
        if value in self.allowed:
            return None
        flag = "--" + self.option.replace("_", "-")
        return f"{flag} is {value!r}, must be {self.allowed[0]!r}: {self.why}"


OFF = (None, False)
ONE = (1, None, 0)
LIMITS = (
    Limit("disaggregation_mode", ("decode",), "the decode role is the one that the others are added to"),
    Limit("disaggregation_transfer_backend", ("nixl",), "no other backend was run with two KV managers on one pool"),
    Limit(
        "disaggregation_decode_enable_radix_cache",
        (True,),
        "a micro-request goes on from the prefix that the radix cache kept",
    ),
    Limit("tp_size", ONE, _UNTESTED),
    Limit("pp_size", ONE, "the pipeline's event loops poll queues of one role"),
    Limit("dp_size", ONE, _UNTESTED),
    Limit("ep_size", ONE, _UNTESTED),
    Limit("nnodes", ONE, _UNTESTED),
    Limit("attn_cp_size", ONE, _UNTESTED),
    Limit("dcp_size", ONE, _UNTESTED),
    Limit("enable_dp_attention", OFF, _UNTESTED),
    Limit("speculative_algorithm", (None,), "draft KV cache is not sent by the prefill role"),
    Limit("enable_lora", OFF, _UNTESTED),
    Limit("lora_paths", (None, [], {}), _UNTESTED),
    Limit("enable_hierarchical_cache", OFF, _MOVE),
    Limit("disaggregation_decode_enable_offload_kvcache", OFF, _MOVE),
    Limit("disaggregation_decode_host_receive_threshold", (1, 1.0), _MOVE),
    Limit("enable_hisparse", OFF, _MOVE),
    Limit("enable_lmcache", OFF, _MOVE),
    Limit("enable_flexkv", OFF, _MOVE),
    Limit("enable_unified_memory", OFF, _MOVE),
    Limit("enable_memory_saver", OFF, "only one of the two KV managers would release and register the pool again"),
    Limit("enable_pdmux", OFF, _STATE),
    Limit("enable_pd_role_switch", OFF, "every role is there already; a switch would tear one of them down"),
    Limit("enable_priority_scheduling", OFF, "a preempted request would lose the KV cache that another server sent"),
    Limit(
        "optimistic_prefill_attempts",
        (0, None),
        "prefill before decode has KV capacity can deadlock two servers",
    ),
    Limit("dllm_algorithm", (None,), _STATE),
    Limit("encoder_only", OFF, _STATE),
    Limit("language_only", OFF, _STATE),
)
"""Options that a version of SGLang does not know are as if they had their first allowed value."""

MODEL_LIMITS = (
    Limit("is_generation", (True,), "embedding models do not decode"),
    Limit("is_hybrid_swa", OFF, "sliding-window state is not kept per role"),
    Limit("is_hybrid_ssm", OFF, "the state of a recurrent layer is not kept per role"),
    Limit("enable_staging", OFF, "SGLANG_DISAGG_STAGING_BUFFER was never run with several roles"),
)


RANK_LIMITS = (
    Limit("pp_size", ONE, "each of its ranks would compose another step"),
    Limit("attn_cp_size", ONE, "each of its ranks would compose another step"),
    Limit(
        "enable_prefill_delayer", OFF, "its ranks wait for each other in each step, also for one that prefills nothing"
    ),
)
"""What a batch scheduler cannot do: it decides for all ranks that are tensor parallel, and for no others."""


def refused_ranks(arguments: Any) -> Iterator[str]:
    """Yield what stands against a batch scheduler in SGLang's server arguments."""
    return (refusal for limit in RANK_LIMITS if (refusal := limit.refusal(arguments)))


def refused_arguments(arguments: Any) -> Iterator[str]:
    """Yield what stands against a dual-role instance in SGLang's server arguments."""
    return (refusal for limit in LIMITS if (refusal := limit.refusal(arguments)))


def refused_model(scheduler: Any) -> Iterator[str]:
    """Yield what stands against it in the model, which a scheduler knows once it is loaded."""
    for limit in MODEL_LIMITS:
        if limit.refusal(scheduler):
            yield f"{limit.option} is {getattr(scheduler, limit.option)!r}: {limit.why}"
