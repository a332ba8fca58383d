"""What a request asks for itself: priority, weight, objectives and tenant, by header or body, as far as it may."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pdplugins.contracts.request import Terms
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.names import hashed
from pdplugins.limits import TermsConfig

HEADERS = {name: f"x-pdplugins-{name.replace('_', '-')}" for name in ("priority", "weight", "ttft_ms", "tpot_ms")}
"""Headers by the name that the field has in a body, inside of the object `FIELD`."""
FIELD = "pdplugins"


class Asking:
    """Reads the terms of requests."""

    def __init__(self, config: TermsConfig) -> None:
        self._config = config
        self._reads = config != TermsConfig()

    def terms(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> Terms | None:
        """Return the terms of a request; None where it asks for nothing that it may. Headers win over the body.

        :param body: its fields `priority` and `FIELD`. Raises GatewayError for what is no number.
        """
        if not self._reads:
            return None
        config, own = self._config, body.get(FIELD)
        asked = {"priority": body.get("priority"), **(own if isinstance(own, dict) else {})}
        asked |= {name: headers[header] for name, header in HEADERS.items() if header in headers}
        given = {name: _number(name, asked[name]) for name in HEADERS if asked.get(name) is not None}
        most, weight = config.most_priority, config.most_weight
        tenant = headers.get(config.tenant_header or "") or None
        terms = Terms(
            priority=round(_within(given.get("priority", 0.0), (-most, most))),
            weight=_within(given.get("weight", 1.0), (1 / weight, weight)),
            ttft_s=_objective(given.get("ttft_ms"), config.ttft_s),
            tpot_s=_objective(given.get("tpot_ms"), config.tpot_s),
            tenant=tenant and hashed(tenant),
            tenant_weight=config.tenants.get(tenant or "", 1.0),
        )
        return None if terms == Terms() else terms


def _number(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise GatewayError(400, f"{name} is no number", param=name)
    return number


def _objective(ms: float | None, bounds: tuple[float, float] | None) -> float | None:
    return None if ms is None or bounds is None else _within(ms / 1e3, bounds)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
