"""Chunks of an answer that wait for the same frontend become one.

A chunk costs Dynamo's binding more than all else that the router does for it. So a frontend that cannot keep up gets
fewer and longer ones.
"""

from __future__ import annotations

from collections import deque
from typing import Any

LISTS = ("token_ids", "tokens")
"""What a chunk says of each of its tokens, next to their text."""
JOINED = frozenset({*LISTS, "text", "index"})
OF_TOKENS = ("log_probs", "top_logprobs")
"""What else a chunk may say of each of its tokens; such ones stay as they are."""


def take(chunks: deque[dict[str, Any]]) -> dict[str, Any]:
    """Take the first chunk, and those behind it as far as they can be joined to it."""
    taken = [chunks.popleft()]
    while chunks and _joinable(taken[-1], chunks[0]):
        taken.append(chunks.popleft())
    return _joined(taken) if len(taken) > 1 else taken[0]


def _joinable(chunk: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether two chunks can be one: the first has nothing but tokens, and both belong to the same answer."""
    return (
        all(value is None or name in JOINED for name, value in chunk.items())
        and chunk.get("index") == after.get("index")
        and all(after.get(name) is None for name in OF_TOKENS)
    )


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the chunks as one, which ends as the last one does."""
    whole = dict(chunks[-1])
    for name in LISTS:
        if name in whole:
            whole[name] = [token for chunk in chunks for token in chunk.get(name) or ()]
    texts = [chunk["text"] for chunk in chunks if chunk.get("text") is not None]
    return whole | {"text": "".join(texts)} if texts else whole
