"""Lets Python take the sources of the simulator's kernel although compiled modules lie beside them.

``pytest --pure`` imports this file, and puts its folder on PYTHONPATH. Python imports a module of this name when it
starts, so the programs that tests start do the same. The product knows nothing of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

KERNEL = "pdplugins.sim.core"


class SourceFinder(MetaPathFinder):
    """Finds the sources of the kernel's package, and nothing else."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        if package != KERNEL:
            return None
        for folder in path or ():
            if (source := Path(folder) / f"{module}.py").exists():
                return spec_from_file_location(name, source)
        return None


if any(name.startswith(f"{KERNEL}.") for name in sys.modules):
    raise RuntimeError("the simulator's kernel was imported before anybody could choose its sources")
sys.meta_path.insert(0, SourceFinder())
