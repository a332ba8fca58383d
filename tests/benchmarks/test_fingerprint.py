"""Fingerprints change with what a program computes, and not with what people read."""

from __future__ import annotations

from pathlib import Path

import fingerprint
import manifest
import pytest

CODE = '''"""A module."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from a import B

X = 3
"""What X is."""

def f(a: int, b: str = "key") -> int:
    """Add."""
    if a < 0:
        raise ValueError(f"{b}: it must not be negative")
    return a + X  # a sum
'''


def of(tmp_path: Path, text: str, name: str = "m.py") -> str:
    path = tmp_path / name
    path.write_text(text)
    return fingerprint.of([path], tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Add."""', '"""Add two numbers."""'),
        ('    """Add."""\n', ""),
        ('"""What X is."""\n', ""),
        ("  # a sum", ""),
        ("a + X", "(a +\n        X)"),
        ("from a import B", "from a import B, C"),
        ("a: int", "a: float"),
        ("-> int", "-> float"),
    ],
)
def test_what_only_people_read_does_not_change_it(tmp_path: Path, old: str, new: str) -> None:
    assert old in CODE
    assert of(tmp_path, CODE.replace(old, new)) == of(tmp_path, CODE)


def test_a_message_of_several_words_is_prose_and_a_key_is_not(tmp_path: Path) -> None:
    text = 'raise ValueError("it must not be negative")\n'
    assert of(tmp_path, text) == of(tmp_path, 'raise ValueError("it has to be positive, sir")\n')
    assert of(tmp_path, 'x["key"]\n') != of(tmp_path, 'x["other key"]\n')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = 3", "X = 4"),
        ("a + X", "a - X"),
        ("a + X", "X + a"),
        ('"key"', '"lock"'),
        ("a < 0", "a <= 0"),
        ("X = 3", "X = 3.0"),
        ("X = 3", "X = None"),
        ("def f", "def g"),
    ],
)
def test_what_a_program_computes_changes_it(tmp_path: Path, old: str, new: str) -> None:
    assert of(tmp_path, CODE.replace(old, new)) != of(tmp_path, CODE)


def test_data_are_compared_as_data(tmp_path: Path) -> None:
    assert of(tmp_path, '{"a": 1, "b": [2]}', "d.json") == of(tmp_path, '{"b":[2],\n"a":1}', "d.json")
    assert of(tmp_path, '{"a": 1}', "d.json") != of(tmp_path, '{"a": 2}', "d.json")
    assert of(tmp_path, "a: 1 # one\n", "d.yaml") == of(tmp_path, "{a: 1}\n", "d.yaml")
    assert of(tmp_path, "a: 1\n", "d.yaml") != of(tmp_path, "a: 2\n", "d.yaml")
    assert of(tmp_path, "1,2\n", "d.csv") != of(tmp_path, "1,3\n", "d.csv")


def test_a_file_that_moves_changes_it(tmp_path: Path) -> None:
    assert of(tmp_path, CODE, "m.py") != of(tmp_path, CODE, "n.py")


def test_a_script_is_measured_with_what_it_imports_from_its_folders_and_without_what_writes_results() -> None:
    found = {str(path.relative_to(manifest.HERE)) for path in manifest.closure(manifest.HERE / "arrow/figure7.py")}
    assert found == {"arrow/figure7.py", "arrow/common.py", "measure.py"}
