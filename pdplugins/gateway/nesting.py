"""How deep JSON is nested, found without building what it says: a few passes over its bytes, none of them in Python."""

from __future__ import annotations

_BRACKETS = b"[]{}"
_KEPT = frozenset(b'[]{}"\\')
_OTHERS = bytes(byte for byte in range(256) if byte not in _KEPT)
_ROUND = bytes.maketrans(b"{}", b"[]")
MOST_MARKS = 1_000_000
"""Brackets, quotes and escapes of a body, strings included: what is gone through once."""
MOST_BRACKETS = 100_000
"""Brackets outside of strings: what is gone through once for each level."""


def too_nested(body: bytes, most: int) -> str | None:
    """Return what is wrong with the nesting of a JSON text that is well formed; None when nothing is.

    :param most: the deepest nesting that is allowed.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return None
    marks = body.translate(None, _OTHERS)
    if len(marks) > MOST_MARKS:
        return "the body has too many values"
    unescaped = marks.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in marks else marks
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(_ROUND)  # what is outside of strings
    if len(brackets) > MOST_BRACKETS:
        return "the body has too many values"
    for _ in range(most):
        brackets = brackets.replace(b"[]", b"")  # takes the innermost level away
        if not brackets:
            return None
    return f"the body is nested more than {most} deep"
