"""What every request to a listener must bring: a key, where keys are wanted, and JSON, where it has a body."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aiohttp import hdrs, web

from pdplugins.gateway.access.api_keys import ApiKeys
from pdplugins.gateway.access.rates import KeyRates
from pdplugins.gateway.account import KEY_NAME
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics

log = logging.getLogger("pdplugins.gateway")

OPEN = ("/health", "/health_generate")
"""What anyone may ask: load balancers have no keys, and the answer tells no more than that something listens."""
JSON = "application/json"


class UnauthorizedError(GatewayError):
    """A request without a key that is known here."""

    def __init__(self, message: str) -> None:
        super().__init__(401, message)
        self.headers = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class Gate:
    """The checks of one listener.

    :param keys: whose requests it takes; None takes everyone's.
    :param admin: it takes keys for admins only.
    :param rates: how many requests each key may make; None: any number.
    """

    metrics: GatewayMetrics
    keys: ApiKeys | None = None
    admin: bool = False
    rates: KeyRates | None = None

    def check(self, request: web.BaseRequest) -> None:
        """Raise GatewayError for a request that may not pass."""
        if self.keys is not None and request.path not in OPEN:
            self._check_key(self.keys, request)
        if request.method == "POST" and not _is_json(request):
            # A page of any site may send forms and plain text to this machine, but JSON only where it is allowed to.
            raise GatewayError(415, f"send JSON, with the header Content-Type: {JSON}")

    def _check_key(self, keys: ApiKeys, request: web.BaseRequest) -> None:
        key = keys.find(request.headers.get("authorization"))
        if key is None:
            self.metrics.fault("unauthorized", f"{request.remote} has no key that is known here")
            raise UnauthorizedError(
                "no API key, or an unknown one; send it in the header Authorization, after 'Bearer'"
            )
        if self.admin and not key.admin:
            self.metrics.fault("unauthorized", f"{request.remote} came with {key.name}, which is no admin key")
            raise GatewayError(403, "this key is not for admins")
        request[KEY_NAME] = key.name
        if self.rates is not None:
            try:
                self.rates.take(key)
            except GatewayError:
                self.metrics.overload("key_rate")
                raise


def _is_json(request: web.BaseRequest) -> bool:
    """Tell whether a request says that it carries JSON, whatever follows behind a semicolon.

    aiohttp would parse that too: half a second for 8 KB of semicolons, and an error for as many brackets.
    """
    kind = request.headers.get(hdrs.CONTENT_TYPE, "")
    return kind == JSON or kind.partition(";")[0].strip(" \t").lower() == JSON
