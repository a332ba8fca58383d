"""Finds the compiled engine that belongs to exactly these sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = (
    "clock", "steps", "kv", "links", "flight", "records", "decode", "runs", "engine", "batching", "dispatch",
    "views", "routing", "policies", "window",
)  # fmt: skip
"""What is compiled: all that runs for each request."""


def folder() -> Path:
    """Return where the compiled engine of these sources lies, or would."""
    digest = hashlib.sha256(sysconfig.get_platform().encode() + sys.version.encode())
    for name in MODULES:
        digest.update((HERE / f"{name}.py").read_bytes())
    digest.update((HERE.parent / "types.py").read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pdplugins" / f"sim-{digest.hexdigest()[:20]}"


def activate(path: list[str]) -> bool:
    """Put the compiled engine ahead of the sources on the package's `path`. False when there is none."""
    if os.environ.get("PDPLUGINS_SIM_PURE"):
        return False
    try:
        shared = next(folder().glob("*__mypyc.*"), None)
    except (OSError, RuntimeError):  # no home, or a cache that cannot be read
        return False
    if shared is None:
        return False
    name = shared.name.partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, shared)
    if spec is None or spec.loader is None:
        return False
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    path.insert(0, str(shared.parent))
    return True
