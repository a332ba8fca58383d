"""What one of several gateway processes on one port knows of them all; it comes through the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pdplugins.config import Choice, Config
from pdplugins.errors import ConfigError

VARIABLE = "PDPLUGINS_PEERS"
"""Environment variable by which a process knows that it is one of several."""
DIVIDED = ("max_connections", "max_requests", "max_waiting", "max_bodies_mib", "max_answers_mib", "retry_reserve")
"""Limits of the section `gateway` that hold for all processes together."""
SLOTS = "per_worker"
"""Setting of the flow policy ``fcfs``: requests in service for each worker, of all processes together."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several processes knows of them all."""

    index: int
    count: int
    folder: Path
    supervisor: int
    """The id of the process that has started it."""
    key: str
    """By which all of them hash names of sessions, in hexadecimal digits."""

    def environment(self) -> dict[str, str]:
        """Return the variables of such a process. Equal prompts need equal hashes in all of them."""
        data = asdict(self) | {"folder": str(self.folder)}
        return {VARIABLE: json.dumps(data), "PYTHONHASHSEED": str(int(self.key[:8], 16))}


def part_of(config: Config, index: int, count: int) -> Config:
    """Return what process `index` of `count` may admit of what `config` allows: the parts of all add up to it.

    Raises ConfigError where a part would be nothing, or too little for one body.
    """

    def part(name: str, whole: int) -> int:
        if whole < count:
            raise ConfigError(f"--processes {count}: {name} is {whole}, less than one for each; raise it")
        return whole // count + (index < whole % count)

    limits = {name: part(name, getattr(config.gateway, name)) for name in DIVIDED}
    if limits["max_bodies_mib"] < config.gateway.max_body_mib:
        least = count * config.gateway.max_body_mib
        raise ConfigError(f"--processes {count}: max_bodies_mib has no room for a body in each; raise it to {least}")
    limits["max_answers_mib"] = max(limits["max_answers_mib"], config.gateway.max_answer_mib)
    update: dict[str, object] = {"gateway": config.gateway.model_copy(update=limits)}
    flow = config.flow
    if flow is not None and flow.name == "fcfs" and isinstance(slots := flow.settings.get(SLOTS), int):
        settings = {**flow.settings, SLOTS: part(SLOTS, slots)}
        update["flow"] = Choice.model_validate({"name": flow.name, **settings})
    return config.model_copy(update=update)


def own_share() -> Share | None:
    """Return the share of this process; None where it is the only one."""
    if (given := os.environ.get(VARIABLE)) is None:
        return None
    data = json.loads(given)
    return Share(**data | {"folder": Path(data["folder"])})
