"""How much of a prompt is in the KV cache; newer versions of SGLang keep that in another place."""

from __future__ import annotations

from typing import Any


def done_tokens(request: Any) -> int:
    """Tokens of a request whose KV cache is there, as of its last step."""
    known = getattr(request, "prefix_len", None)
    return len(request.prefix_indices) if known is None else int(known)


def rest_tokens(request: Any | None) -> int:
    """Tokens that a request still prefills; 0 when there is no request."""
    return 0 if request is None else max(request.seqlen - done_tokens(request), 0)
