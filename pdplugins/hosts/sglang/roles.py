"""The role of each request: its bootstrap address says who prefills it, so that routers need nothing but that field."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

LOCAL_HOST = "pdp-local"
"""Bootstrap host of a request that wants no other server, for routers that must name one."""
NO_HOST = "2.2.2.2"
"""SGLang's own name for a transfer that is not made (health checks, benchmarks). Its decode side can do that."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine: with this server's port they mean this server, whoever else listens on other machines."""


class EngineRole(StrEnum):
    """What this server does for one request."""

    LOCAL = "local"
    """Prefills and decodes it."""
    PREFILL = "prefill"
    """Prefills it and sends the KV cache to the server that decodes."""
    DECODE = "decode"
    """Gets its KV cache from the server that prefills, and decodes."""


class Addressed(Protocol):
    """A request of SGLang, as it arrives or later."""

    bootstrap_host: str | None
    bootstrap_port: int | None
    bootstrap_room: int | None


@dataclass(frozen=True, slots=True)
class Classifier:
    """Knows this server's address, and with that the role of each request."""

    hosts: frozenset[str]
    """Names and addresses by which routers call this server."""
    port: int
    """Its bootstrap port."""

    @classmethod
    def of(cls, hosts: Iterable[str], port: int) -> Classifier:
        """Build one for a server that has these names besides those of the loopback."""
        return cls(LOOPBACK | {host.strip("[]").lower() for host in hosts if host}, port)

    def role_of(self, request: Addressed) -> EngineRole:
        """Return what to do for `request`. Without a bootstrap room it names no other server."""
        host = request.bootstrap_host
        if host == LOCAL_HOST or (host is None and request.bootstrap_room is None):
            return EngineRole.LOCAL
        if host is None or host == NO_HOST:
            return EngineRole.DECODE
        port = self.port if request.bootstrap_port is None else int(request.bootstrap_port)
        if port != self.port:
            return EngineRole.DECODE
        return EngineRole.PREFILL if host.strip("[]").lower() in self.hosts else EngineRole.DECODE
