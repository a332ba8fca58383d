"""The keys of clients. Only their hashes are kept, in a file that is read again when it changes.

Each line is ``NAME sha256:HEX``, then perhaps ``admin`` for a key that the admin listener takes, and ``rate=N`` for the
requests that it may make in a second. Keys are made by `new_key`, from 256 random bits, so that a plain hash is enough:
nobody tries that many.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pdplugins.errors import ConfigError, shown
from pdplugins.files import DEVICE, STDOUT, held, read_limited, whole_text

log = logging.getLogger("pdplugins.gateway")

PREFIX = "pdp-"
MOST_KEYS = 1000
MOST_BYTES = 2**18
LOOK_S = 1.0
"""Pause between two looks whether the file has changed."""
_LINE = re.compile(
    r"(?P<name>[\w.@-]{1,64})\s+sha256:(?P<hash>[0-9a-f]{64})(?P<admin>\s+admin)?(?:\s+rate=(?P<rate>\d{1,9}(?:\.\d{1,6})?))?"
)
_BEARER = re.compile(r"(?i)bearer +(\S+)")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key: what it is called, its hash, and whether the admin listener takes it."""

    name: str
    hash: bytes
    admin: bool = False
    rate: float | None = None
    """Requests a second; None for what holds for all keys, 0 for any number."""

    def __str__(self) -> str:
        return f"{self.name} sha256:{self.hash.hex()}{' admin' if self.admin else ''}"


class ApiKeys:
    """The keys in a file. Raises ConfigError when it cannot be read at first; later the keys before hold."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._look()
        self._keys = read_keys(path)

    def find(self, authorization: str | None) -> ApiKey | None:
        """Return the key that a header holds; None when it holds none of ours. Takes as long whichever it is."""
        match = _BEARER.fullmatch(authorization or "")
        digest = sha256(match[1].encode("utf-8", "surrogateescape")).digest() if match else b""
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.hash, digest):
                found = key
        return found

    def reload(self) -> None:
        """Read the file again."""
        self._stamp = self._look()
        try:
            self._keys = read_keys(self._path)
        except ConfigError as error:
            log.warning("%s; the keys before hold", error)
        else:
            log.info("read %d keys from %s", len(self._keys), self._path)

    async def watch(self) -> None:
        """Read the file again whenever it changes, for as long as the gateway runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._look() != self._stamp:
                self.reload()

    def _look(self) -> tuple[int, ...]:
        try:
            facts = self._path.stat()
        except OSError:
            return ()
        return facts.st_mtime_ns, facts.st_size, facts.st_ino


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys in a file. Raises ConfigError with one line."""
    try:
        raw = read_limited(path, MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"--api-keys {path}: {error.strerror}; make it with 'pdplugins gateway-key'") from None
    except ConfigError as error:  # nobody may write to a pipe, and the gateway would wait
        raise ConfigError(f"--api-keys {path}: {error}") from None
    lines = [line.strip() for line in raw.decode(errors="replace").splitlines()]
    keys: dict[str, ApiKey] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            raise ConfigError(f"--api-keys {path}, line {number}: write NAME sha256:HEX, or let 'gateway-key' write it")
        rate = None if match["rate"] is None else float(match["rate"])
        keys[match["name"]] = ApiKey(match["name"], bytes.fromhex(match["hash"]), bool(match["admin"]), rate)
    if len(keys) > MOST_KEYS:
        raise ConfigError(f"--api-keys {path}: more than {MOST_KEYS} keys; use a proxy that knows your users")
    return tuple(keys.values())


def new_key(path: Path, name: str, *, admin: bool, tell: Callable[[str], object] = lambda _: None) -> str:
    """Make a key called `name`, add its hash to the file, and return it. It is nowhere else. Raises ConfigError.

    :param tell: gets the key before the file has its hash. Where it raises, the file stays as it was.
    """
    with held(path):
        return _added(path, name, admin, tell)


def _added(path: Path, name: str, admin: bool, tell: Callable[[str], object]) -> str:
    there = _is_there(path)
    keys = read_keys(path) if there else ()
    if _LINE.fullmatch(f"{name} sha256:{'0' * 64}") is None:
        raise ConfigError(f"gateway-key: {shown(name)} is no name; use up to 64 letters, digits and . _ @ -")
    if name in {key.name for key in keys}:
        raise ConfigError(f"gateway-key: {path} has a key called {name}; take its line out first, or use another name")
    key = PREFIX + secrets.token_urlsafe(32)
    before = path.read_bytes().rstrip(b"\r\n") if there else b""  # comments may be of any encoding
    added = str(ApiKey(name, sha256(key.encode()).digest(), admin)).encode()
    with whole_text(path, mode=0o600) as file:
        file.buffer.write(b"\n".join([*filter(None, [before]), added, b""]))
        file.flush()
        tell(key)
    return key


def _is_there(path: Path) -> bool:
    """Tell whether the file is there. Raises ConfigError for what keeps no key, or its reader waiting."""
    try:
        there = path.exists()
        odd = path in (STDOUT, DEVICE) or (there and not path.is_file())
    except OSError as error:
        raise ConfigError(f"gateway-key: {path}: {error.strerror}; name a file that can be read and written") from None
    if odd:
        raise ConfigError(f"gateway-key: {path}: no file, so it would keep no key; name a file")
    return there
