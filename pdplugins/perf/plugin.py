"""Registers every shipped profile under ``<gpu>/<model>``. A file is read only when its profile is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pdplugins import hookimpl
from pdplugins.contracts.register import NoSettings, Register
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.resources import data_dir


@hookimpl
def pd_register_profiles(register: Register) -> None:
    """Add ``profiles/<gpu>/<model>.json`` as ``<gpu>/<model>``."""
    root = data_dir("profiles")
    for path in sorted(root.glob("*/*.json")):
        register(path.relative_to(root).with_suffix("").as_posix(), _reader(path))


def _reader(path: Path) -> Callable[[NoSettings], TableModel]:
    return lambda _settings: TableModel(read_profile(path))
