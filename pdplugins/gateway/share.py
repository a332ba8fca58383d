"""What one of several gateway processes on one port knows of them all; it comes through the environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "PDPLUGINS_PEERS"
"""Environment variable by which a process knows that it is one of several."""


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


def own_share() -> Share | None:
    """Return the share of this process; None where it is the only one."""
    if (given := os.environ.get(VARIABLE)) is None:
        return None
    data = json.loads(given)
    return Share(**data | {"folder": Path(data["folder"])})
