"""A hash of what a program computes: the same after changes of comments, docstrings, messages and formatting.

Results carry the fingerprints of the code that they measure, so that a test can tell, without git, which of them are
older than that code.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import yaml

PROSE = 4
"""A string of at least so many words is a message for people: no figure depends on it."""
LENGTH = 12
"""Hexadecimal digits of a fingerprint."""


def of(files: Iterable[Path], root: Path) -> str:
    """Return the fingerprint of `files`, each by its place under `root`."""
    lines = sorted(f"{path.relative_to(root).as_posix()} {of_file(path)}" for path in files)
    return _hash("\n".join(lines).encode())


def of_file(path: Path) -> str:
    """Return the fingerprint of one file: of its syntax tree, of its data, or of its bytes."""
    status = path.stat()
    return _of_file(path, status.st_mtime_ns, status.st_size)


@cache
def _of_file(path: Path, *_: int) -> str:
    if path.suffix == ".py":
        return _hash("\n".join(_shown(ast.parse(path.read_bytes()))).encode())
    if path.suffix == ".json":
        return _hash(json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True).encode())
    if path.suffix in {".yaml", ".yml"}:
        return _hash(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8")), sort_keys=True, default=str).encode())
    return _hash(path.read_bytes())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def _shown(node: ast.AST) -> Iterator[str]:
    """Yield the tree of `node` in words, the same for every version of Python, without what only people read."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return
        case ast.Constant(value=str() as text) if len(text.split()) >= PROSE:
            yield "prose"
            return
        case ast.Constant():
            yield repr(node.value)
            return
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        if _annotates(node, name):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                inner = list(_shown(part))
                yield from [name, *inner] if inner else []
            elif part is not None:
                yield f"{name}={part!r}"
    yield ")"


def _annotates(node: ast.AST, name: str) -> bool:
    """Tell whether a field is the type of an argument or of what a function returns."""
    return name == "returns" or (name == "annotation" and isinstance(node, ast.arg)) or name == "type_comment"
