"""Shapes of models, which determine their cost: weights, KV cache and arithmetic per token.

A shape comes from the ``config.json`` of the model on Hugging Face. `KNOWN` holds the shapes of the shipped profiles.
`read_shape` reads others of the same kind: a decoder of equal layers, with or without experts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdplugins.errors import ConfigError, one_line, shown
from pdplugins.files import is_file, read_limited

BF16_BYTES = 2
MOST = 10**9
"""The largest number of a shape."""
UNEQUAL = ("n_routed_experts", "kv_lora_rank")
"""Keys of what `read_shape` does not know: experts beside others or beside dense layers, and latent attention."""
MOST_BYTES = 2**22
"""Size of the largest file."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    """Width of the feed-forward part, or of one expert where there are several."""
    vocab: int
    max_context: int
    head_dim: int = 128
    ffn_matrices: int = 3
    """3 with a gate (SwiGLU), 2 without (OPT)."""
    experts: int = 1
    active_experts: int = 1
    weight_bytes: int = BF16_BYTES
    """Bytes of one weight of the layers; embeddings are always BF16."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of BF16 KV cache of one token, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BF16_BYTES

    @property
    def attention_weights(self) -> int:
        """Weights of the four projections of one layer."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Weights of the feed-forward part of one layer, or of one expert where there are several."""
        return self.ffn_matrices * self.hidden * self.ffn

    @property
    def model_bytes(self) -> int:
        """Bytes of all weights: the layers, and separate input and output embeddings."""
        layer = self.attention_weights + self.experts * self.expert_weights
        return self.layers * layer * self.weight_bytes + 2 * self.vocab * self.hidden * BF16_BYTES

    def hugging_face(self) -> dict[str, Any]:
        """Return a ``config.json`` of equal cost. A layer without a gate becomes a gated one with as many weights."""
        mixture = {"num_local_experts": self.experts, "num_experts_per_tok": self.active_experts}
        return {
            "architectures": ["MixtralForCausalLM" if self.experts > 1 else "LlamaForCausalLM"],
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": round(self.ffn * self.ffn_matrices / 3 / 128) * 128,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_context,
            **(mixture if self.experts > 1 else {}),
        }


_LLAMA_8B = Shape(32, 4096, 32, 8, 14336, 128256, 131072)
_LLAMA_70B = Shape(80, 8192, 64, 8, 28672, 128256, 131072)
KNOWN = {
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-70B": _LLAMA_70B,
    "nvidia/Llama-3.1-70B-Instruct-FP8": Shape(80, 8192, 64, 8, 28672, 128256, 131072, weight_bytes=1),
    "Qwen/Qwen2.5-14B": Shape(48, 5120, 40, 8, 13824, 152064, 131072),
    "Qwen/Qwen2.5-32B": Shape(64, 5120, 40, 8, 27648, 152064, 131072),
    "Qwen/Qwen2.5-72B": Shape(80, 8192, 64, 8, 29568, 152064, 131072),
    "Qwen/Qwen3-32B": Shape(64, 5120, 64, 8, 25600, 151936, 40960),
    "facebook/opt-30b": Shape(48, 7168, 56, 56, 28672, 50272, 2048, ffn_matrices=2),
    "mistralai/Mixtral-8x7B-v0.1": Shape(32, 4096, 32, 8, 14336, 32000, 32768, experts=8, active_experts=2),
}
"""Shapes of the models of the shipped profiles, by their name on Hugging Face."""


def find_shape(model: str) -> Shape:
    """Return the shape of a known model, or of a ``config.json`` where `model` is its path or its folder."""
    if (shape := KNOWN.get(model)) is not None:
        return shape
    for path in (Path(model), Path(model) / "config.json"):
        if is_file(path):
            return read_shape(path)
    raise ConfigError(
        f"model {one_line(model)}: its shape is not known; give the path of its config.json, or one of "
        f"{', '.join(sorted(KNOWN))}"
    )


def read_shape(path: Path) -> Shape:
    """Read a Hugging Face ``config.json``. Raises ConfigError when it does not describe a decoder of equal layers."""
    try:
        found = json.loads(read_limited(path, MOST_BYTES))
        _check_alike(found)
        hidden, heads = _count(found, "hidden_size"), _count(found, "num_attention_heads")
        return Shape(
            layers=_count(found, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_count(found, "num_key_value_heads", default=heads),
            ffn=_count(found, "moe_intermediate_size", "intermediate_size", "ffn_dim"),
            vocab=_count(found, "vocab_size"),
            max_context=_count(found, "max_position_embeddings"),
            head_dim=_count(found, "head_dim", default=max(hidden // heads, 1)),
            ffn_matrices=2 if "ffn_dim" in found else 3,
            experts=_count(found, "num_local_experts", "num_experts", default=1),
            active_experts=_count(found, "num_experts_per_tok", default=1),
            weight_bytes=1 if "fp8" in json.dumps(found.get("quantization_config", "")).lower() else BF16_BYTES,
        )
    except KeyError as error:
        raise ConfigError(f"model {path}: no {error} in it; it must be the config.json of a decoder") from None
    except (OSError, ConfigError, ValueError, RecursionError, TypeError, AttributeError) as error:
        raise ConfigError(f"model {path}: {one_line(error)}; it must be the config.json of a decoder") from None


def _check_alike(found: dict[str, Any]) -> None:
    """Raise ValueError where layers differ, or more experts answer than there are."""
    if odd := [name for name in UNEQUAL if found.get(name)]:
        raise ValueError(f"{odd[0]}: latent attention, or layers that differ, which no shape tells")
    experts = _count(found, "num_local_experts", "num_experts", default=1)
    if (active := _count(found, "num_experts_per_tok", default=1)) > experts:
        raise ValueError(f"num_experts_per_tok is {active}, and the number of experts {experts}")


def _count(found: dict[str, Any], *names: str, default: int | None = None) -> int:
    """Return the first number of these names. Raises KeyError where there is none, ValueError where it is no count."""
    name = next((name for name in names if found.get(name)), names[-1])
    value = found.get(name) or default
    if value is None:
        raise KeyError(name)
    if type(value) is not int or not 1 <= value <= MOST:
        raise ValueError(f"{name} is {shown(value)}, which is no whole number from 1 to {MOST}")
    return value
