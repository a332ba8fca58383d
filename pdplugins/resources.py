"""The folders of packaged data, and the environment variables that SGLang's processes read.

In a checkout the data is next to the package, and in an installation it is inside the package.
"""

from pathlib import Path

CONFIG_VARIABLE = "PDPLUGINS_CONFIG"
"""Names a config file, or a shipped config, for SGLang's processes. Without this variable SGLang runs unchanged."""
DECISION_LOG_VARIABLE = "PDPLUGINS_DECISION_LOG"
"""Names the file in which SGLang's processes log what their batch scheduler decides; each adds its process id."""

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Return the folder of packaged data called `name` (``configs``, ``profiles`` or ``hooks``)."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name
