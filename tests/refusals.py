"""What a user is told."""

from __future__ import annotations

from collections.abc import Callable

from pdplugins.errors import PdpluginsError


def refusal(work: Callable[[], object]) -> str:
    """Return what the error says that `work` raises, if it is one that a user can put right; nothing where none is."""
    try:
        work()
    except PdpluginsError as error:
        return str(error)
    return ""
