"""Where the packaged data lies: beside the package in a checkout, inside it when installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Return the folder of packaged data called `name` (``configs``, ``profiles`` or ``hooks``)."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
