"""Who may call the external planner.

Dynamo 1.4's planner calls its plugins over plain-text gRPC, and sends nothing that would tell who it is: no TLS, no
metadata, no token. So what can be checked is where a call comes from, and a key that something in between adds, such as
a service mesh. Over a Unix socket the file system decides who may connect; then nothing else is needed.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import grpc

from pdplugins.errors import ConfigError, one_line, shown

log = logging.getLogger("pdplugins.dynamo")

LOG_EVERY = 1000
"""After the first refusal, one in this many is logged."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network(text: str) -> Network:
    """Read ``ADDRESS`` or ``ADDRESS/BITS``. Raises ConfigError."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"--allow-from: {shown(text)} is no address; write for example 10.0.0.7, or 10.0.0.0/8"
        ) from None


class Guard:
    """Refuses strangers. Without a key and networks, whoever reaches us may call."""

    def __init__(self, key: str | None = None, networks: Sequence[Network] = ()) -> None:
        self._key = key
        self._networks = networks
        self._refused = 0

    async def check(self, context: Any) -> None:
        """Abort the call of a stranger."""
        peer = str(context.peer())
        if self._networks and not self._near(peer):
            self._tell(peer, "--allow-from does not name it")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this address may not call")
        if self._key is not None and not self._has_key(context):
            self._tell(peer, "it has no key, or a wrong one")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no key, or a wrong one")

    def _near(self, peer: str) -> bool:
        """Tell whether a peer is in one of the networks: ``ipv4:1.2.3.4:5``, ``ipv6:%5B::1%5D:5``, ``unix:…``."""
        kind, _, rest = unquote(peer).partition(":")
        if kind == "unix":
            return True
        try:
            address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return False
        return any((getattr(address, "ipv4_mapped", None) or address) in network for network in self._networks)

    def _has_key(self, context: Any) -> bool:
        wanted = f"Bearer {self._key}".encode()
        given = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        return any(hmac.compare_digest(v if isinstance(v, bytes) else v.encode(), wanted) for v in given)

    def _tell(self, peer: str, why: str) -> None:
        if self._refused % LOG_EVERY == 0:
            log.warning("refused a call from %s (%d so far): %s", one_line(peer), self._refused + 1, why)
        self._refused += 1
