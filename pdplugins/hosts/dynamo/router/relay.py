"""Passes the chunks of answers on to Dynamo's frontend, which asks for them one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from pdplugins.hosts.dynamo.router.chunks import take

if TYPE_CHECKING:
    from pdplugins.hosts.dynamo.router.legs import Answer


AT_THE_END = ("finish_reason", "stop_reason", "completion_usage")
"""What the last chunk of an answer has."""
FULL = {"token_ids": [], "finish_reason": "length"}
"""The last chunk of an answer with as many tokens as the client allows."""


class Answers:
    """Where the chunks of one request go: the frontend takes them from there."""

    __slots__ = ("_chunks", "_error", "_wake", "ended", "started")

    def __init__(self) -> None:
        self.started = False
        """Whether the frontend has got anything."""
        self.ended = False
        self._chunks: deque[dict[str, Any]] = deque()
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None

    def send(self, chunk: dict[str, Any]) -> None:
        """Pass a chunk on."""
        self.started = True
        self._chunks.append(chunk)
        self._rouse()

    def end(self, error: Exception | None) -> None:
        """Say that nothing more comes, and why."""
        self.ended, self._error = True, error
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks as they come. Raises what the request ended with."""
        while True:
            while self._chunks:
                yield take(self._chunks)
            if self.ended:
                break
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self._error is not None:
            raise self._error


def _begun(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return the last chunk of a part as one that is followed by others."""
    return {name: value for name, value in chunk.items() if name not in AT_THE_END}


class Relay:
    """A `pdplugins.gateway.engine.Relay`: passes chunks on, and remembers the token ids that the client has got.

    :param most: output tokens that the client allows; None where the model's context is the only limit, or where it
        asks for several answers.
    """

    def __init__(self, client: Answers, on_tokens: Callable[[int], None], most: int | None = None) -> None:
        self._client = client
        self._on_tokens = on_tokens
        self._most = most
        self._said: list[int] = []
        self.ids: list[int] = []
        """Tokens of the workers before."""

    @property
    def speaking(self) -> bool:
        """Whether the client has got tokens of the worker that answers now."""
        return bool(self._said)

    @property
    def delivered_tokens(self) -> int:
        """Output tokens that the client has got in all."""
        return len(self.ids) + len(self._said)

    async def run(self, answer: Answer, *, head: bool = False) -> bool:
        """Pass on what a worker says. With `head` another one goes on. Return whether the answer is whole."""
        self._said = said = []
        whole = True
        async for chunk in answer:
            if chunk["token_ids"]:
                self._on_tokens(len(chunk["token_ids"]))
            said += chunk["token_ids"]
            whole = not (head and chunk.get("finish_reason") == "length" and not self._full)
            self._client.send(self._counted(chunk) if whole else _begun(chunk))
        return whole

    @property
    def _full(self) -> bool:
        """Whether the client has got all that it allows."""
        return self._most is not None and self.delivered_tokens >= max(self._most, 1)

    def _counted(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return a chunk as if one worker had said all so far: who goes on counts earlier tokens to the prompt."""
        usage, before = chunk.get("completion_usage"), len(self.ids)
        if not before or not isinstance(usage, dict):
            return chunk
        moved = {"prompt_tokens": -before, "completion_tokens": before}
        counted = {name: usage[name] + more for name, more in moved.items() if type(usage.get(name)) is int}
        return chunk | {"completion_usage": usage | counted}

    async def close(self) -> bool:
        """End an answer that broke off with nothing left to say. Return whether it was such a one."""
        if self._full:
            self._client.send(FULL)
        return self._full

    def fold(self) -> None:
        """Keep what this worker has said: another one goes on."""
        self.ids = self.ids + self._said
        self._said = []

    def usage(self, name: str) -> int | None:
        """Workers do not count for us."""
        return None
