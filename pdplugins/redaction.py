"""Keeps secrets out of everything that people and programs read: logs, errors, metrics and pages.

Every secret that this process knows is registered where it is read. `redacted` removes those from a text, and what
looks like one: keys of the gateway's clients (of which it knows the hash only), users and passwords in URLs, bearer
tokens, and values called api key or password.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "***"
LEAST_LENGTH = 8
"""Characters of the shortest secret. A shorter one would be found in any text, and guessed soon."""

_known: set[str] = set()
_NAMES = r"(?:api[-_]?key|password|passwd|auth[-_]token)"
# Clients choose what is looked through. So a backslash fits in one way only, and what has fitted is not tried again.
_VALUE = r"(?:(?P<quote>['\"])(?:\\.|(?!(?P=quote))[^\\\n])*+(?P=quote)|['\"]?[^\s,;)}\]&'\"\\]+)"
_INSTEAD = rf"\g<name>\g<quote>{HIDDEN}\g<quote>"
_PATTERNS = (
    (re.compile(r"\bpdp-[-\w]{20,}"), f"pdp-{HIDDEN}"),
    (re.compile(r"(?<=://)[^/\s'\"@]*@"), f"{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|authorization['\"]?\s*[:=]\s*['\"]?\w+)\s+[-\w.~+/=]+"), rf"\1 {HIDDEN}"),
    (re.compile(rf"(?i)(?P<name>{_NAMES}['\"]?\s*[=:]\s*){_VALUE}"), _INSTEAD),
    (re.compile(rf"(?i)(?P<name>(?<![-\w])--[-\w]{{0,30}}{_NAMES}\s+){_VALUE}"), _INSTEAD),
)


def secret(value: str) -> str:
    """Register a secret, and return it."""
    _known.add(value)
    return value


def redacted(text: str) -> str:
    """Return `text` without secrets."""
    for known in _known:
        text = text.replace(known, HIDDEN)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


class RedactedFormatter(logging.Formatter):
    """Formats log records, tracebacks included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return redacted(super().format(record))


def redact_every_log() -> None:
    """Take secrets out of every log record of this process, however it is written."""
    make = logging.getLogRecordFactory()

    def redacted_record(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        try:
            record.msg, record.args = redacted(record.getMessage()), ()
        except (TypeError, ValueError):  # its arguments do not fit; logging says so itself
            record.args = ()
        return record

    logging.setLogRecordFactory(redacted_record)


def redact_logs(handlers: Iterable[logging.Handler], form: str) -> None:
    """Have `handlers` write records in the form `form` and without secrets."""
    for handler in handlers:
        handler.setFormatter(RedactedFormatter(form))
