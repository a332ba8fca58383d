"""What SGLang calls in each of its processes (entry-point group ``sglang.srt.plugins``)."""

from __future__ import annotations

import os

from pdplugins.resources import CONFIG_VARIABLE


def register() -> None:
    """Hook what the config asks for into this process. Raises SystemExit when it cannot be done and `strict` holds."""
    if name := os.environ.get(CONFIG_VARIABLE):
        from pdplugins.hosts.sglang.install import install  # noqa: PLC0415 - a server without a config pays nothing

        install(name)
