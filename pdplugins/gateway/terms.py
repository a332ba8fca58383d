"""What a request asks for itself: priority, weight, objectives and tenant, by header or body, as far as it may."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pdplugins.contracts.request import Terms
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.names import hashed
from pdplugins.limits import TermsConfig

HEADERS = {name: f"x-pdplugins-{name.replace('_', '-')}" for name in ("priority", "weight", "ttft_ms", "tpot_ms")}
"""Headers by the name that the field has in a body, inside of the object `FIELD`."""
FIELD = "pdplugins"
CARRIED = re.compile(r"~(-?\d{1,3})~(\d{1,9}(?:\.\d{1,9})?)~(\d{0,9})~(\d{0,9})(?:_\d+)?$")
"""Terms behind the name of a request on an engine: priority, weight, and its objectives in ms, which may be missing.
SGLang counts the requests of a batch behind that."""


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


def carried(terms: Terms | None, waited_s: float) -> str:
    """Return what the name of a request on an engine ends with, so that the engine's own queue knows its terms.

    :param waited_s: what is gone of its TTFT before it comes to the engine.
    """
    if terms is None:
        return ""
    ttft_ms = None if terms.ttft_s is None else round(1e3 * max(terms.ttft_s - waited_s, 0.0))
    tpot_ms = None if terms.tpot_s is None else round(1e3 * terms.tpot_s)
    ends = ("" if ms is None else str(ms) for ms in (ttft_ms, tpot_ms))
    return "~".join(("", str(terms.priority), f"{terms.weight:.9f}".rstrip("0").rstrip("."), *ends))


def carried_by(name: str, config: TermsConfig) -> Terms | None:
    """Return the terms that the name of a request carries, within what the operator allows; None where it has none.

    Its TTFT may be shorter than what a client may ask for: a part of it has gone by.
    """
    if "~" not in name or config == TermsConfig() or (found := CARRIED.search(name)) is None:
        return None
    priority, weight, ttft_ms, tpot_ms = found.groups()
    most, heaviest = config.most_priority, config.most_weight
    ttft_s = None if not ttft_ms or config.ttft_s is None else min(int(ttft_ms) / 1e3, config.ttft_s[1])
    terms = Terms(
        priority=round(_within(int(priority), (-most, most))),
        weight=_within(float(weight), (1 / heaviest, heaviest)),
        ttft_s=ttft_s,
        tpot_s=_objective(float(tpot_ms) if tpot_ms else None, config.tpot_s),
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
