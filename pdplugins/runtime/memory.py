"""Keeps on disk what a planner learned, so that its next run begins with it.

The file is written whole or not at all. One that is damaged, too large, of another planner or of another version is
ignored with a warning: a planner without memory learns again, and serving goes on.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pdplugins.contracts.planner import Remembers
from pdplugins.errors import ConfigError, one_line
from pdplugins.files import write_whole

log = logging.getLogger("pdplugins.memory")

FORMAT, VERSION = "pdplugins planner memory", 1
LARGEST_BYTES = 2**20
SAVE_S = 60.0
"""Seconds between two times that it is written."""


class PlannerMemory:
    """The memory of one planner in one file.

    :param name: the planner's name in the config; another planner's memory is not read.
    """

    def __init__(self, path: Path, name: str, policy: Remembers) -> None:
        self._path, self._name, self._policy = path, name, policy
        self._due_s: float | None = None
        self._warned = False

    def load(self) -> None:
        """Let the planner begin with what is kept, if anything usable is. Never raises."""
        try:
            with self._path.open("rb") as file:
                text = file.read(LARGEST_BYTES + 1)
            self._policy.recall(self._read(text))
        except FileNotFoundError:
            log.info("planner_memory: no %s yet, the planner begins without", self._path)
        except Exception as error:  # whatever is in the file, and whatever the planner says to it
            log.warning("planner_memory: %s is ignored, the planner begins without (%s)", self._path, one_line(error))
        else:
            log.info("planner_memory: the planner begins with what %s says", self._path)

    def _read(self, text: bytes) -> dict[str, Any]:
        if len(text) > LARGEST_BYTES:
            raise ValueError(f"more than {LARGEST_BYTES} bytes")
        found = json.loads(text)
        head = {"format": FORMAT, "version": VERSION, "planner": self._name}
        if not isinstance(found, dict) or {key: found.get(key) for key in head} != head:
            raise ValueError(f"not the memory of planner {self._name}, version {VERSION}")
        if not isinstance(learned := found.get("learned"), dict):
            raise ValueError("nothing under 'learned'")  # noqa: TRY004 - the file is wrong, not the program
        return learned

    def keep(self, now_s: float) -> None:
        """Write it when it is time to. Never raises."""
        if self._due_s is None or now_s < self._due_s - SAVE_S:  # the first call, or a clock that was set back
            self._due_s = now_s + SAVE_S
        elif now_s >= self._due_s:
            self._due_s = now_s + SAVE_S
            self.save()

    def save(self) -> None:
        """Write it. Warns once where that fails. Never raises."""
        try:
            learned = self._policy.memory()
            head = {"format": FORMAT, "version": VERSION, "planner": self._name}
            write_whole(self._path, json.dumps({**head, "learned": learned}, allow_nan=False) + "\n", mode=0o600)
        except Exception as error:  # a full disk, or a planner that fails, must not stop serving
            if not self._warned:
                log.warning("planner_memory: %s is not written (%s)", self._path, one_line(error))
            self._warned = True


def remembering(path: Path | None, name: str, policy: object) -> PlannerMemory | None:
    """Return the memory of `policy`, loaded; None where there is no path. Raises ConfigError where it has none."""
    if path is None:
        return None
    if not isinstance(policy, Remembers):
        raise ConfigError(f"planner_memory: planner {name} keeps nothing; remove the key, or pick a planner that does")
    memory = PlannerMemory(path, name, policy)
    memory.load()
    return memory
