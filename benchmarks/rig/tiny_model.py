"""A tiny Llama with random weights of a large variance, so that each token depends on every entry of the KV cache."""

from __future__ import annotations

import json
from pathlib import Path

HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS, HEADS = 64, 128, 512, 2, 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "model_max_length": 8192,
    "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
}
MARKS = ["<think>", "</think>"]
"""Tokens of their own, which the reasoning parser asks for; the last ones of the vocabulary."""
BLANK, BLANK_ID = "\u0120", VOCABULARY - len(MARKS) - 1
"""As byte-level tokenizers write it: the grammar of a tool call may ask for one."""


def make(folder: Path) -> Path:
    """Write the model and its tokenizer into `folder`. The tokenizer knows ASCII only, so that text is well-formed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(33, 127)]
    names = ["<pad>", "<s>", "</s>", "<unk>", *letters]
    names += [f"<x{index}>" for index in range(len(names), BLANK_ID)] + [BLANK, *MARKS]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(MARKS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    _weights(folder / "model.safetensors")
    return folder


def _weights(path: Path) -> None:
    import torch  # noqa: PLC0415 - not in the usual test environment
    from safetensors.torch import save_file  # noqa: PLC0415

    generator = torch.Generator().manual_seed(0)

    def random(rows: int, columns: int, gain: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * gain / columns**0.5).contiguous()

    weights = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN, 8),
        "lm_head.weight": random(VOCABULARY, HIDDEN, 4),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for part, gain in (("q", 2), ("k", 2), ("v", 3), ("o", 3)):
            weights[f"{name}self_attn.{part}_proj.weight"] = random(HIDDEN, HIDDEN, gain)
        weights[f"{name}mlp.gate_proj.weight"] = random(INTERMEDIATE, HIDDEN, 1)
        weights[f"{name}mlp.up_proj.weight"] = random(INTERMEDIATE, HIDDEN, 1)
        weights[f"{name}mlp.down_proj.weight"] = random(HIDDEN, INTERMEDIATE, 1)
        weights[f"{name}input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[f"{name}post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    save_file(weights, str(path), metadata={"format": "pt"})
