"""A model folder without weights: what Dynamo's frontend and mocker engines need of a model, made on the spot.

The dimensions are those of Llama 3.1 70B, from which the mocker computes the size of its KV cache. The tokenizer is
byte-level BPE whose merges are pairs of characters: deterministic, tiny, and two characters to a token, so that any
text goes in and readable nonsense comes out.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
_SPACE = "\u0120"
"""How byte-level BPE writes the space before a word."""
_CHAT_TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n' + m['content'] + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n' }}{% endif %}"
)
_LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def write_model(folder: Path) -> None:
    """Write the model into `folder`, which is created."""
    folder.mkdir(parents=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in _SPECIAL}
    begin_and_end = {"bos_token_id": ids["<|begin_of_text|>"], "eos_token_id": ids["<|eot_id|>"]}
    files = {
        "config.json": {**_LLAMA_70B, "vocab_size": tokenizer.get_vocab_size(), **begin_and_end},
        "generation_config.json": begin_and_end,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "model_max_length": 131072,
            "chat_template": _CHAT_TEMPLATE,
            "added_tokens_decoder": {str(number): _added(token) for token, number in ids.items()},
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _tokenizer() -> Tokenizer:
    pairs = list(product(ascii_lowercase, ascii_lowercase))
    pairs += product(ascii_uppercase, ascii_lowercase)
    pairs += product(digits, digits)
    pairs += [(_SPACE, letter) for letter in ascii_lowercase]
    pairs += [(_SPACE + a, b) for a, b in product(ascii_lowercase, ascii_lowercase)]
    tokens = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _added(token: str) -> dict[str, object]:
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": token, "special": True, **flags}
