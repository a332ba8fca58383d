"""One request as policies see it, and its objectives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objectives of one request."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Request:
    """One request, or one round of a session, as it arrives."""

    id: str
    arrival_s: float
    prompt_tokens: int
    predicted_output_tokens: int | None = None
    history_tokens: int = 0
    """Tokens of the prompt that earlier rounds of the session already computed."""
    session: str | None = None
    bound_worker: str | None = None
    """Worker that holds the session's KV cache."""
    blocks: tuple[int, ...] = ()
    """Hashes of the prompt's KV blocks, for prefix-cache-aware routing."""
