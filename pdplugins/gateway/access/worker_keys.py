"""The keys that workers want: what every request to them carries, polls and aborts too."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pdplugins.errors import ConfigError
from pdplugins.processes.addresses import check_url, is_loopback
from pdplugins.processes.keys import checked

log = logging.getLogger("pdplugins.gateway")

KEY = "PDPLUGINS_WORKER_KEY"
ADMIN_KEY = "PDPLUGINS_WORKER_ADMIN_KEY"
OPTION = "--worker-key-file"
MOST_BYTES = 2**20
REFUSALS = (401, 403)
"""Statuses of an answer to a request without the right key."""


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """The keys of one worker; None where it wants none.

    SGLang takes the admin key, and no other, for aborts, where it was started with one (``--admin-api-key``).
    """

    key: str | None = None
    admin: str | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """What requests carry."""
        return _bearer(self.key)

    def refused(self, status: int, headers: Mapping[str, str]) -> bool:
        """Tell whether an answer says that our key is wrong, or missing where the client's `headers` have none."""
        return status in REFUSALS and (self.key is not None or "authorization" not in headers)

    @property
    def admin_headers(self) -> Mapping[str, str]:
        """What requests carry that change something on the worker."""
        return _bearer(self.admin or self.key)


def _bearer(key: str | None) -> Mapping[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


NONE = WorkerKey()


@dataclass(frozen=True)
class WorkerKeys:
    """The keys of all workers: by URL, and one for those without an own one."""

    common: WorkerKey = NONE
    by_url: Mapping[str, WorkerKey] = field(default_factory=dict)

    def of(self, url: str) -> WorkerKey:
        """Return the keys of the worker at `url`."""
        return self.by_url.get(url, self.common)

    def warn(self, workers: Iterable[str]) -> None:
        """Say which of these workers get their keys in plain text over the network."""
        plain = [url for url in workers if self.of(url).key is not None and _plain(url)]
        if plain:
            log.warning("keys go to %s in plain text; give those workers TLS and https URLs", ", ".join(plain))


def _plain(url: str) -> bool:
    parts = check_url(url, "--worker")
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


NO_KEYS = WorkerKeys()


def key_refused(error: BaseException) -> str | None:
    """Return what to say of a worker that does not take our key; None for any other error."""
    status = getattr(error, "status", None)
    if status not in REFUSALS:
        return None
    return f"it refuses our key (status {status}); give the one that it was started with: {OPTION} or {KEY}"


def read_worker_keys(path: Path | None) -> WorkerKeys:
    """Read a file of keys; without one, the environment.

    Each line of the file is ``KEY``, for all workers, or ``URL KEY``, for one. An admin key may follow. Raises
    ConfigError, which shows no key.
    """
    if path is None:
        key, admin = (checked(value, name) if (value := os.environ.get(name)) else None for name in (KEY, ADMIN_KEY))
        return WorkerKeys(WorkerKey(key, admin))
    common, by_url = NONE, {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        words, where = line.split(), f"{OPTION} {path}, line {number}"
        if not words or words[0].startswith("#"):
            continue
        url = words.pop(0).rstrip("/") if words[0].startswith(("http://", "https://")) else None
        if not 1 <= len(words) <= 2:
            raise ConfigError(f"{where}: write KEY or URL KEY, and an admin key after it where the worker has one")
        keys = WorkerKey(*(checked(word, where) for word in words))
        if url is None:
            common = keys
        else:
            check_url(url, where)
            by_url[url] = keys
    return WorkerKeys(common, by_url)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{OPTION} {path}: {error.strerror}; name a file with one key, or one for each worker"
        ) from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{OPTION} {path}: larger than {MOST_BYTES // 2**20} MiB; is it the right file?")
    return raw.decode("ascii", "replace")
