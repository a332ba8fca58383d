"""HTML that cannot be broken out of: whatever is not `Html` already is escaped where it enters an element."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"meta", "link"})
"""Elements without content."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *inside: object, **attributes: Any) -> Html:
    """Return an element.

    :param inside: text, which is escaped; `Html`, which is not; iterables of both. None is nothing.
    :param attributes: by name, ``_`` for ``-`` and with one more at the end where Python has that word; their values
        are escaped, True is an attribute without value, None and False are no attribute.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{opening}>" if name in VOID else f"<{opening}>{together(inside)}</{name}>")


def together(parts: object) -> Html:
    """Return text, `Html` or iterables of both as HTML."""
    if parts is None:
        return Html()
    if isinstance(parts, Html):
        return parts
    if isinstance(parts, Iterable) and not isinstance(parts, str):
        return Html("".join(map(together, parts)))
    return Html(html.escape(_printable(str(parts))))


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(_printable(str(value)))}"'


def _printable(text: str) -> str:
    """Replace characters that no page may hold, and those that turn the direction of the text after them."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)
