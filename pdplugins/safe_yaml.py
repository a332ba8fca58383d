"""YAML that people write, read within limits: a small file must not cost minutes of CPU or gigabytes of memory.

PyYAML recurses for every level, expands aliases of aliases without a limit, and silently takes the last of two equal
keys. Its constructors raise whatever Python raises for a value that they cannot convert. It also reads YAML 1.1, where
``no`` is false, ``1:30`` is 90 and ``010`` is 8. Editors and Kubernetes read the core schema of YAML 1.2, and so do we.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from pdplugins.errors import ConfigError, one_line, shown
from pdplugins.files import read_limited

MOST_BYTES = 2**17
"""Size of the largest file."""
MOST_LEVELS = 50
"""Deepest nesting."""
MOST_NODES = 5_000
"""Values in all, each as often as aliases repeat it."""
MOST_DIGITS = 30
"""Characters of the longest whole number."""

_TAG = "tag:yaml.org,2002:"
_CORE = {
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "null": "|~|null|Null|NULL",
    "merge": "<<",
}
"""Which plain scalars are no text, the first that fits: YAML 1.2.2, section 10.3.2, and the merge key of 1.1."""
_SCALARS = [(_TAG + kind, re.compile(rf"(?:{form})\Z")) for kind, form in _CORE.items()]
_BASES = {"0o": 8, "0x": 16}


def read_yaml(path: Path, *, pipes: bool = True) -> Any:
    """Return what a YAML file says. Raises OSError, or ConfigError with one line that does not name the file.

    :param pipes: also read a pipe or a device, which may keep its reader waiting.
    """
    raw = read_limited(path, MOST_BYTES, pipes=pipes)
    try:
        return parse_yaml(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"not YAML: no UTF-8 text ({error.reason} at byte {error.start})") from None


def parse_yaml(text: str) -> Any:
    """Return what YAML says. Raises ConfigError with one line."""
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "line 1"
        raise ConfigError(f"{position}: not YAML: {one_line(error.problem or error.context or '?')}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {one_line(error)}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2, with limits, and without duplicate keys."""

    yaml_implicit_resolvers = {None: _SCALARS}  # noqa: RUF012 - so PyYAML's own classes have it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._counts: dict[int, int] = {}
        """Values within each anchored node, by its identity."""
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raises yaml.MarkedYAMLError when there are too many, or too deep ones."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before, self._level = self._nodes, self._level + 1
        alias = self.check_event(yaml.AliasEvent)
        if self._level > MOST_LEVELS:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_LEVELS} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        if alias:
            if id(node) not in self._counts:
                raise yaml.MarkedYAMLError(problem="an alias of a value that contains it", problem_mark=mark)
            self._nodes += self._counts[id(node)]
        else:
            self._nodes += 1
            self._counts[id(node)] = self._nodes - before
        if self._nodes > MOST_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_NODES} values", problem_mark=mark)
        self._level -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node. Raises yaml.MarkedYAMLError for what Python cannot convert."""
        if node.tag == f"{_TAG}int" and len(node.value) > MOST_DIGITS:
            problem = f"a whole number of more than {MOST_DIGITS} digits"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:  # no file may be called so
            raise yaml.MarkedYAMLError(problem="a text with the character NUL", problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= char <= "\udfff" for char in node.value):
            raise yaml.MarkedYAMLError(problem="a text with half a character", problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
            problem = str(error) if isinstance(error, ValueError) else f"no value of {node.tag}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raises yaml.MarkedYAMLError for a duplicate key."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # PyYAML refuses others itself
                if key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {shown(key)} stands twice", problem_mark=key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number; zeros before it do not make it octal."""
        return int(node.value, _BASES.get(node.value[:2], 10))


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
