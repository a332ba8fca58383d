"""One request as policies see it, and its objectives."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.swift import swift


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objectives of one request. It is served in time when it keeps both."""

    ttft_s: float
    """Most seconds from its arrival to its first token."""
    tpot_s: float
    """Most seconds per output token after the first, as their mean."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one request asks for itself, within what the operator allows. Policies that know none of it ignore it."""

    priority: int = 0
    """How urgent it is: larger goes first."""
    weight: float = 1.0
    """What it is worth to serve it in time, against the others; above 0."""
    ttft_s: float | None = None
    """Its own objective; None for the deployment's. See `Slo`."""
    tpot_s: float | None = None
    """Likewise."""
    tenant: str | None = None
    """Who sent it, as a short hash."""
    tenant_weight: float = 1.0
    """The tenant's share of the capacity, against the other tenants; above 0."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, or one round of a session, as it arrives."""

    id: str
    """Its name, which no other request has at the same time."""
    arrival_s: float
    """Time at which it came, by the clock of `now_s`."""
    prompt_tokens: int
    """Tokens of the whole prompt, `history_tokens` included."""
    predicted_output_tokens: int | None = None
    """Tokens that its answer will have, as far as the host knows; None where it says nothing."""
    history_tokens: int = 0
    """Tokens of the prompt that earlier rounds of the session already computed."""
    session: str | None = None
    """Name of the session whose round it is; None where it stands alone."""
    bound_worker: str | None = None
    """Worker that holds the session's KV cache."""
    blocks: tuple[int, ...] = ()
    """Hashes of the prompt's KV blocks, for prefix-cache-aware routing."""
    terms: Terms | None = None
    """What it asks for itself; None where it asks for nothing, or the host does not say."""


swift_request = swift(Request)
"""``Request(*values)`` in a third of the time."""
