"""Where the packaged data lies, and which variable names the config of a process that pdplugins does not start.

The data lies beside the package in a checkout, and inside it when installed.
"""

from pathlib import Path

CONFIG_VARIABLE = "PDPLUGINS_CONFIG"
"""Names a config file, or a shipped config, for SGLang's processes. Without it nothing of SGLang is touched."""

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Return the folder of packaged data called `name` (``configs``, ``profiles`` or ``hooks``)."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
