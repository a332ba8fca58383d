"""YAML within limits: whatever a file holds, it is read in little time and memory, and an error is one short line."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins import config
from pdplugins.errors import ConfigError
from pdplugins.safe_yaml import MOST_BYTES, MOST_LEVELS, MOST_NODES, parse_yaml, read_yaml

LETTERS = "abcdefgh"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in pairwise(LETTERS)
)
"""Nine to the power of eight values in 290 bytes."""


def refused(read: Callable[[], object]) -> str:
    """Return the error of reading; nothing where there is none."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""


def test_it_merges_mappings_as_pyyaml_does() -> None:
    assert parse_yaml("b: &b {c: d}\ne: {<<: *b, f: *b}\n")["e"] == {"c": "d", "f": {"c": "d"}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, int(text, 0)) for text in ("1", "-3", "+3", "0o17", "0x1F")],
        *[(text, int(text)) for text in ("010", "-08")],
        *[(text, float(text)) for text in ("2.5", ".5", "5.", "1e3", "-1.5E-3")],
        *[(text, math.inf) for text in (".inf", "+.Inf")],
        *[(text, text == "TRUE") for text in ("TRUE", "False")],
        *[(text, None) for text in ("~", "null", "")],
        *[
            (text, text)
            for text in ("yes", "No", "on", "off", "y", "1:30", "1:30.5", "2024-01-01", "0b11", "1_000", "=", "x")
        ],
        ("'1'", "1"),
        ("!!str 1", "1"),
    ],
)
def test_a_scalar_is_what_the_core_schema_of_yaml_1_2_says(text: str, value: object) -> None:
    found = parse_yaml(f"a: {text}\n")["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "more than 5000 values"),
        ("[" * 2000, f"line 1, column {MOST_LEVELS + 1}: not YAML: more than 50 levels"),
        ("- " * 2000, "more than 50 levels"),
        ("a: " + "9" * 5000, "line 1, column 4: not YAML: a whole number of more than 30 digits"),
        ("a: 0x" + "f" * 5000, "a whole number of more than 30 digits"),
        ("a: &a [*a]", "line 1, column 8: not YAML: an alias of a value that contains it"),
        ("[" + "a," * MOST_NODES + "]", "more than 5000 values"),
        ("{a: 1, a: 2}", "key 'a' stands twice"),
        ('{"a\\nb": 1, "a\\nb": 2}', r"key 'a\nb' stands twice"),
        ("a: !!timestamp 2020-99-99", "month must be in 1..12"),
        ("a: !!timestamp soon", "no value of tag:yaml.org,2002:timestamp"),
        ("a: !!bool maybe", "no value of tag:yaml.org,2002:bool"),
        ("a: !!float ''", "no value of tag:yaml.org,2002:float"),
        ("a: !!float " + "1:" * 400 + "1.5", "no value of tag:yaml.org,2002:float"),
        ("a: \x00", "not YAML: unacceptable character"),
        ('signals: {folder: "a\\0b"}', "line 1, column 19: not YAML: a text with the character NUL"),
        (r'path: "\ud800"', "line 1, column 7: not YAML: a text with half a character"),
        ("*" + "n" * 5000, "found undefined alias"),
    ],
    ids=lambda value: value[:24],
)
def test_what_it_refuses_is_one_short_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text)
    said = str(caught.value)
    assert message in said
    assert len(said) < 300
    assert said.isprintable()


def test_a_file_has_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: " + "x" * (MOST_BYTES - 3))
    assert len(read_yaml(path)["a"]) == MOST_BYTES - 3
    path.write_text("a: " + "x" * MOST_BYTES)
    with pytest.raises(ConfigError, match="larger than 128 KiB"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="larger than 128 KiB"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    "text",
    [
        f"{BOMB}slo: *h",
        "slo: " + "[" * 40 + "1" + "]" * 40,
        "slo: " + "{a: " * 30 + "1" + "}" * 30,
        "planner: {name: dopd, interval_s: " + "[" * 30 + "]" * 30 + "}",
        'planner: "do\\npd"',
        'planner: {name: "do\\u001b[31mpd\\u2028"}',
        "planner: " + "x" * 100_000,
        "planner: {name: dopd, " + "x" * 100_000 + ": 1}",
        "planner: {name: dopd, interval_s: " + "x" * 100_000 + "}",
        "x" * 100_000 + ": 1",
        '"a\\nb": 1',
        "deployment: {profile: " + "x" * 100_000 + "}",
        "simulation: {deaths: [{at_s: 1, worker: " + "x" * 50_000 + ", at: 3}]}",
    ],
    ids=lambda value: value[:40],
)
def test_a_hostile_config_is_one_short_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    said = refused(lambda: config.resolved(config.load(path)))
    assert said.startswith(str(path))
    assert len(said) < len(str(path)) + 400
    assert said.isprintable()


def test_a_config_whose_name_is_too_long_for_a_file_is_not_there() -> None:
    with pytest.raises(ConfigError, match="File name too long") as caught:
        config.load(config.find("x" * 5000))
    assert len(str(caught.value)) < 1000


@given(st.text(alphabet="abc:-[]{}&*!|>'\"%#,?0123.e+ \n\t", max_size=120) | st.text(max_size=40))
def test_any_text_is_data_or_an_error_in_one_line(text: str) -> None:
    said = refused(lambda: parse_yaml(text))
    assert said.isprintable()
    assert len(said) < 400


@pytest.mark.moderate
@given(st.binary(max_size=60))
def test_any_file_is_a_config_or_an_error_in_one_line(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(raw)
    assert refused(lambda: config.load(path)).isprintable()
