"""Reading a config.json: what describes no decoder is an error in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.shapes import Shape, find_shape

GOOD = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
NAMES = [*GOOD, "num_key_value_heads", "head_dim", "num_local_experts", "num_experts_per_tok"]


def test_what_a_config_leaves_out_has_its_usual_value(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GOOD))
    assert find_shape(str(tmp_path)) == Shape(32, 4096, 32, 32, 14336, 128256, 131072)


@pytest.mark.parametrize("value", ['"x"', "-1", "1.5", "9" * 30, "NaN", "1e999", "[1]", "true"])
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_none_is_named(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GOOD | {name: "@"}).replace('"@"', value))
    with pytest.raises(ConfigError, match=f"model {path}: {name} is .*, which is no whole number from 1 to 1000000000"):
        find_shape(str(path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "maximum recursion depth"),
        (b"\xff", "can't decode byte"),
        (b"[]", "'list' object has no attribute"),
        (b"{}", "no 'hidden_size' in it"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b" " * 5_000_000, "larger than 4096 KiB"),
    ],
    ids=["empty", "deep", "bytes", "list", "object", "digits", "large"],
)
def test_what_is_no_config_is_refused(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=f"model {path}: .*{why}.*; it must be the config.json of a decoder"):
        find_shape(str(path))


def test_a_name_that_is_too_long_is_not_known() -> None:
    with pytest.raises(ConfigError, match="its shape is not known") as error:
        find_shape("x" * 5000)
    assert len(str(error.value)) < 1000


def test_a_profile_in_a_device_or_in_a_hole_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.touch()
    with path.open("rb+") as file:
        file.truncate(2**40)
    for one, why in ((path, "larger than 4096 KiB"), (Path("/dev/zero"), "a pipe or a device")):
        with pytest.raises(ConfigError, match=f"profile {one}: {why}"):
            read_profile(one)
