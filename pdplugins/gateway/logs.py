"""Logs that clients cannot flood."""

from __future__ import annotations

import logging
from time import monotonic

HTTP_LOG = logging.getLogger("pdplugins.gateway.http")
"""What aiohttp says of requests that are no HTTP."""
ACCESS_LOG = logging.getLogger("pdplugins.gateway.access")
ACCESS_FORMAT = '%a "%r" %s %b B %Tf s'
EVERY_S = 10.0
"""At most one line in so long."""
LONGEST = 200
"""Characters of what is told of one request."""


def without_data(message: str) -> str:
    """Return what aiohttp says of a request that it cannot read, without the bytes that it shows below an empty line.

    They may be a part of a prompt, which nobody else is to see.
    """
    return message.partition("\n\n")[0].rstrip(":")


class Paced(logging.Filter):
    """Lets one record pass in ten seconds, in one line and without a traceback, and tells how many it left out."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to log `record`, which becomes one line."""
        now_s = monotonic()
        if now_s < self._next_s:
            self._left_out += 1
            return False
        error = record.exc_info[1] if record.exc_info else None
        why = "" if error is None else ": " + " ".join(without_data(str(error)).split())
        more = f" ({self._left_out} more since the last line)" if self._left_out else ""
        record.levelno, record.levelname = logging.WARNING, "WARNING"  # it is the client's mistake
        record.msg, record.args, record.exc_info = (record.getMessage() + why)[:LONGEST] + more, (), None
        self._next_s, self._left_out = now_s + EVERY_S, 0
        return True


HTTP_LOG.addFilter(Paced())
