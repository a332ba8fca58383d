"""What clients may know of a server: SGLang tells everything, its API key and the folders of its machine too."""

from __future__ import annotations

import json
from typing import Any

from pdplugins.gateway.engines.sglang.protocol import dumps, parsed

SERVER = frozenset(
    {"version", "status", "served_model_name", "model_path", "context_length", "dtype", "quantization"}
    | {"kv_cache_dtype", "tp_size", "pp_size", "dp_size", "ep_size", "page_size", "max_total_num_tokens"}
    | {"max_req_input_len", "max_running_requests", "max_prefill_tokens", "chunked_prefill_size"}
    | {"schedule_policy", "attention_backend", "sampling_backend", "grammar_backend", "speculative_algorithm"}
    | {"disaggregation_mode", "incremental_streaming_output", "stream_interval", "is_embedding"}
    | {"skip_tokenizer_init", "enable_dp_attention", "disable_radix_cache", "reasoning_parser", "tool_call_parser"}
)
"""Fields of ``/server_info`` that clients get; every other one stays here, the new ones of a later SGLang too."""
MODEL = frozenset(
    {"model_path", "is_generation", "is_embedding", "preferred_sampling_params", "weight_version", "model_type"}
    | {"has_image_understanding", "has_audio_understanding", "architectures"}
)
"""Fields of ``/model_info``."""
FIELDS = {
    "/server_info": SERVER,
    "/get_server_info": SERVER,
    "/model_info": MODEL,
    "/get_model_info": MODEL,
}


def public(path: str, body: bytes) -> bytes:
    """Return what of a server's answer to a client's question is for clients."""
    allowed = FIELDS.get(path)
    if allowed is None:
        return body
    said = parsed(body)
    if said is None:
        return json.dumps({}).encode()
    return dumps({name: _plain(value) for name, value in said.items() if name in allowed})


def model_of(listed: bytes, name: str) -> bytes | None:
    """Return what ``/v1/models`` says of one model; None when it is not there."""
    models = (parsed(listed) or {}).get("data")
    found = (model for model in models if isinstance(model, dict)) if isinstance(models, list) else ()
    return next((dumps(model) for model in found if model.get("id") == name), None)


def _plain(value: Any) -> Any:
    """Return a value without the folders of a machine: the last part of a path is what a model is called."""
    if isinstance(value, str) and value.startswith(("/", "~", "./", "../", "file:")):
        return value.rstrip("/").rpartition("/")[2]
    return value
