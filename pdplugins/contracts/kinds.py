"""The five kinds of policy."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kinds of policy. The value is the key in a config file."""

    PLANNER = "planner"
    ROUTER = "router"
    FLOW = "flow"
    BATCH_SCHEDULER = "batch_scheduler"
    POWER = "power"
