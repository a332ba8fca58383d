"""How deep JSON is nested, found without building what it says: a few passes over its bytes, none of them in Python."""

from __future__ import annotations

_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{")
_OTHERS = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ROUND = bytes.maketrans(b"{}", b"[]")
MOST_MARKS = 1_000_000
"""Brackets and quotes of a body, or its backslashes, those in strings included: what is gone through once."""
MOST_BRACKETS = 100_000
"""Brackets outside of strings: what is gone through once for each level."""


def too_nested(body: bytes, most: int) -> str | None:
    """Return what is wrong with the nesting of a JSON text that is well formed; None when nothing is.

    :param most: the deepest nesting that is allowed.
    """
    if len(body.translate(None, _NO_BRACKETS)) <= most:  # one pass; a count of each bracket would be a pass each
        return None
    escapes = body.count(b"\\")
    if escapes:
        if escapes > MOST_MARKS:
            return "the body has too many values"
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote that is left begins or ends a string
    marks = body.translate(None, _OTHERS)
    if len(marks) > MOST_MARKS:
        return "the body has too many values"
    brackets = b"".join(marks.split(b'"')[::2]).translate(_ROUND)  # what is outside of strings
    if len(brackets) > MOST_BRACKETS:
        return "the body has too many values"
    for _ in range(most):
        brackets = brackets.replace(b"[]", b"")  # takes the innermost level away
        if not brackets:
            return None
    return f"the body is nested more than {most} deep"
