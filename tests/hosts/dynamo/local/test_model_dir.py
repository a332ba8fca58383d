"""The model without weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from pdplugins.hosts.dynamo.local.model_dir import write_model
from pdplugins.workloads.client import _TOKEN_IDS


def test_any_text_survives_the_tokenizer(tmp_path: Path) -> None:
    """Byte-level: nothing is unknown, and what went in comes out."""
    write_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    for text in ("Hello, world!", "Größe 你好 \U0001f600", "a" * 1000):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("hello there").ids) < 8


def test_the_load_clients_token_ids_are_in_the_vocabulary(tmp_path: Path) -> None:
    """An id that is not would decode to nothing."""
    write_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    assert all(tokenizer.decode([number]) for number in range(*_TOKEN_IDS))


def test_the_kv_cache_is_that_of_the_70b_model(tmp_path: Path) -> None:
    """The mocker computes 327,680 bytes per token from these numbers."""
    write_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] == 327_680


def test_two_models_are_the_same(tmp_path: Path) -> None:
    """Same tokenizer, same checksum: Dynamo refuses workers whose model differs from the first one's."""
    write_model(tmp_path / "a")
    write_model(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
