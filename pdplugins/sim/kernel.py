"""Tells whether the simulator's core runs compiled or as plain Python."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pdplugins.errors import HostError
from pdplugins.sim.core import clock

CORE = Path(__file__).parent / "core"
COMPILED = not clock.__file__.endswith(".py")
"""Whether the compiled kernel runs."""


def outdated() -> list[str]:
    """Return the sources that have changed since the kernel was compiled; empty where it is not compiled."""
    if not COMPILED:
        return []
    stamp: dict[str, str] = json.loads((CORE / "kernel.json").read_text(encoding="utf-8"))
    return [name for name, digest in stamp.items() if hashlib.sha256((CORE / name).read_bytes()).hexdigest() != digest]


def check() -> None:
    """Raise HostError if the compiled kernel does not match its sources, as its results would be of another version."""
    if changed := outdated():
        raise HostError(
            f"simulator: {', '.join(changed)} changed since the kernel was compiled; "
            "compile it again with 'pip install --editable .' (in a checkout, 'make setup' does)"
        )


def describe() -> str:
    """Return in one line which kernel runs."""
    if changed := outdated():
        return f"compiled, but not from the sources that are here ({', '.join(changed)} changed)"
    return "compiled" if COMPILED else "plain Python, about a third as fast; a C compiler at installation compiles it"
