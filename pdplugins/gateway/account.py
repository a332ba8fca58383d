"""What is told of each request once it has ended: a line of JSON in the access log."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from pdplugins.contracts.router import Outcome
from pdplugins.gateway.logs import ACCESS_LOG, LONGEST
from pdplugins.redaction import redact_logs, redacted


@dataclass(slots=True)
class Account:
    """One request that workers served, or should have."""

    request: str
    """Its id: the client's own, or a random one."""
    model: str | None
    stream: bool
    outcome: str = ""
    """As in the metric ``requests_total``."""
    workers: tuple[str, ...] = ()
    """Who served it last: who prefilled, then who decoded."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    def end(self, outcome: Outcome, prompt_tokens: int, workers: tuple[str, ...]) -> None:
        """Take in how it ended."""
        self.prompt_tokens, self.output_tokens = prompt_tokens, outcome.output_tokens
        self.ttft_s, self.tpot_s = outcome.ttft_s, outcome.tpot_s
        self.workers = workers


def request_key(name: str, kind: type) -> Any:
    """Return what aiohttp stores a value of a request under: since 3.14 it wants more than a text."""
    return web.RequestKey(name, kind) if hasattr(web, "RequestKey") else name


ACCOUNT = request_key("account", Account)
"""Key of a request under which its account is."""
KEY_NAME = request_key("key", str)
"""Key of a request under which the name of its API key is."""


class JsonAccessLogger(AbstractAccessLogger):
    """Logs one JSON object for each request."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log a request. :param time: the seconds that it took."""
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": request.remote,
            "key": request.get(KEY_NAME),
            "method": request.method[:LONGEST],
            "path": request.path[:LONGEST],
            "status": response.status,
            "bytes": response.body_length,
            "took_s": time,
        }
        if (account := request.get(ACCOUNT)) is not None:
            line |= asdict(account)
            line["took_s"] = max(time, account.ttft_s or 0.0)  # uvloop's clock, aiohttp's here, counts milliseconds
        self.logger.info(json.dumps({name: _told(value) for name, value in line.items() if value is not None}))


def _told(value: Any) -> Any:
    """Return a value without secrets: each by itself, so that none of them can hide what follows it in the line."""
    if isinstance(value, float):
        return round(value, 6)
    return redacted(value) if isinstance(value, str) else value


def log_to_stdout() -> None:
    """Write the access log to stdout, one object a line and nothing else, for programs that read it."""
    handler = logging.StreamHandler(sys.stdout)
    redact_logs([handler], "%(message)s")
    ACCESS_LOG.handlers = [handler]
    ACCESS_LOG.propagate = False
