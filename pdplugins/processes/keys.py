"""Secrets that users give: from a file or the environment, never from the command line, which everyone can read."""

from __future__ import annotations

import os
from pathlib import Path

from pdplugins.errors import ConfigError
from pdplugins.redaction import LEAST_LENGTH, secret

MOST_BYTES = 4096
"""Size of the largest file that holds one secret."""
MAKE = "make one with 'openssl rand -hex 32'"


def read_secret(path: Path | None, option: str, variable: str) -> str | None:
    """Return the secret in the file `path`, else in the environment variable; None where there is neither.

    :param option: that names the file, for errors.

    Raises ConfigError for a file that cannot be read, and for what no HTTP header could carry.
    """
    if path is None:
        given = os.environ.get(variable)
        return checked(given, variable) if given else None
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}; name a file with one key in it") from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{option} {path}: larger than {MOST_BYTES} bytes; name a file with one key in it")
    return checked(raw.decode("ascii", "replace").strip(), f"{option} {path}")


def checked(key: str, where: str) -> str:
    """Return `key`, registered as a secret. Raises ConfigError, which does not show it, when it is none."""
    if len(key) < LEAST_LENGTH:
        raise ConfigError(f"{where}: a key has at least {LEAST_LENGTH} characters; {MAKE}")
    if not key.isascii() or not key.isprintable() or " " in key or key.startswith("-"):
        raise ConfigError(
            f"{where}: a key is one line of ASCII, without spaces and without a dash at its start; {MAKE}"
        )
    return secret(key)
