"""The options of a launcher that nobody starts."""

from __future__ import annotations

from typing import Any

from pdplugins.hosts.dynamo.local.options import Options, pick_config


def options(**changed: Any) -> Options:
    """DOPD over mockers, with nothing written and nothing replayed, unless told otherwise."""
    usual: dict[str, Any] = {
        "config": pick_config("dopd", None, None, None, 2.0),
        "engine": "mocker",
        "host": "127.0.0.1",
        "port": 8000,
        "delay_s": 0.0,
        "status": "plain",
        "decision_log": None,
        "metrics_port": None,
        "log_dir": None,
        "replay": None,
        "command": "dynamo serve",
    }
    return Options(**usual | changed)
