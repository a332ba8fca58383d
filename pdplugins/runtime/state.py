"""What a planner has learned, kept in a file for the next run. Whatever is wrong with it, the run begins anew."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdplugins import files
from pdplugins.contracts.planner import Remembers
from pdplugins.errors import ConfigError
from pdplugins.runtime.faults import STOPS, one_line

log = logging.getLogger("pdplugins.planner")

SCHEMA = 1
EVERY_S = 60.0
"""Seconds between two times that it is written. It is written at the end too."""
MOST_BYTES = 2**16
"""Size of the largest file that is read or written."""
OLDEST_S = 86_400.0
"""What is older is not used."""
_BEGINNING = re.compile(rb'\s*\{\s*"schema"\s*:\s*\d+\s*,\s*"planner"\s*:')
"""How every state file begins, also an old one, a torn one, and that of another planner."""
_LOOKED_AT = 200
"""Bytes in which that is."""


class StateFile:
    """The file of one planner. Only one process may have it. Raises ConfigError where `path` cannot be such a file.

    :param name: of the planner in the config.
    :param clock: seconds since the epoch.
    """

    def __init__(self, path: Path, name: str, planner: object, clock: Callable[[], float] = time.time) -> None:
        files.check_outputs(path)
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: is no regular file; name one that is, or a new one")
        _check_ours(path)
        self._path, self._name, self._clock = path, name, clock
        self._planner = planner if isinstance(planner, Remembers) else None
        self._saved_s = clock()
        if self._planner is None:
            log.warning("%s: planner %s keeps nothing from one run to the next", path, name)
        elif path.exists():
            self._resume(self._planner)

    def _resume(self, planner: Remembers) -> None:
        try:
            planner.resume(*self._read())
        except BaseException as error:  # anyone may have written the file
            if isinstance(error, STOPS):
                raise
            log.warning("%s: not used, the planner begins anew (%s)", self._path, one_line(error, 200))
        else:
            log.info("%s: the planner goes on from there", self._path)

    def _read(self) -> tuple[Any, float]:
        """Return what was kept, and its age in seconds. Raises anything."""
        with self._path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES} bytes")
        data = json.loads(text)
        if (data["schema"], data["planner"]) != (SCHEMA, self._name):
            raise ValueError(f"schema {data['schema']} of planner {data['planner']}, not {SCHEMA} of {self._name}")
        age_s = self._clock() - float(data["at_s"])
        if not 0 <= age_s <= OLDEST_S:
            raise ValueError(f"written {age_s:.0f} s ago; used for {OLDEST_S:.0f} s")
        return data["state"], age_s

    def beat(self) -> None:
        """Write the file when it is time to. Never raises."""
        if not 0 <= self._clock() - self._saved_s < EVERY_S:  # a clock that was set back would stop it for as long
            self.save()

    def save(self) -> None:
        """Write the file. Never raises."""
        if self._planner is None:
            return
        self._saved_s = self._clock()
        try:
            data = {"schema": SCHEMA, "planner": self._name, "at_s": self._saved_s, "state": self._planner.state()}
            text = json.dumps(data, allow_nan=False, indent=1) + "\n"
            if len(text) > MOST_BYTES:
                raise ValueError(f"larger than {MOST_BYTES} bytes")  # noqa: TRY301 - no next run would read it
            files.write_whole(self._path, text, 0o600)
        except BaseException as error:  # of the planner, or of the file system; serving goes on
            if isinstance(error, STOPS):
                raise
            log.warning("%s: not written (%s)", self._path, one_line(error, 200))


def _check_ours(path: Path) -> None:
    """Raise ConfigError where a file is there that no planner has written: it would be lost."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_LOOKED_AT)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a state file that can be read, or a new file") from None
    if beginning and _BEGINNING.match(beginning) is None:
        raise ConfigError(f"{path}: is no state file of a planner; name one that is, or a new file")
