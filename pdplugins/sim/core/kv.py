"""The KV cache of one engine, counted in tokens.

Tokens are private to a request, or in blocks that requests with the same prefix share. Prefix blocks that no request
uses, and the contexts of sessions between two rounds, stay cached until their tokens are needed. The least recently
used ones are evicted first. Counting tokens instead of pages is exact for page size 1, SGLang's default. For larger
pages it is off by about half a page for each request.
"""

from __future__ import annotations

from collections.abc import Sequence

Key = int | str
"""The hash of a prefix block, or the name of a session."""


class KvCache:
    """Holds `capacity` tokens; a prefix block holds `block_tokens`."""

    __slots__ = ("_idle", "_pinned", "block_tokens", "capacity", "free", "idle_tokens")

    def __init__(self, capacity: int, block_tokens: int = 512) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.free = capacity
        """Tokens that a request may take: unused ones, and those that are only cached."""
        self.idle_tokens = 0
        self._idle: dict[Key, int] = {}
        self._pinned: dict[int, int] = {}

    def take(self, tokens: int) -> None:
        """Take `tokens` from `free`, and evict cached tokens where that is needed."""
        self.free -= tokens
        if self.idle_tokens > self.free:
            self.shrink(self.free)

    def shrink(self, tokens: int) -> None:
        """Evict until at most `tokens` are cached."""
        while self.idle_tokens > tokens and self._idle:
            self.idle_tokens -= self._idle.pop(next(iter(self._idle)))

    def give(self, tokens: int) -> None:
        """Free private tokens."""
        self.free += tokens

    def has(self, block: int) -> bool:
        """Return whether a prefix block is in this KV cache."""
        return block in self._pinned or block in self._idle

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are in this KV cache."""
        for count, block in enumerate(blocks):
            if not self.has(block):
                return count
        return len(blocks)

    def pin(self, blocks: Sequence[int]) -> None:
        """Add one user to each of `blocks`, which must be in this KV cache."""
        for block in blocks:
            users = self._pinned.get(block, 0)
            if not users:
                self.idle_tokens -= self._idle.pop(block)
                self.free -= self.block_tokens
            self._pinned[block] = users + 1
        self.take(0)

    def idle_among(self, blocks: Sequence[int]) -> int:
        """Return the tokens of those of `blocks` that are cached but not used by a request."""
        return sum(self.block_tokens for block in blocks if block in self._idle)

    def share(self, blocks: Sequence[int]) -> list[int]:
        """Turn private tokens of a request into shared blocks; return the new ones, which are now pinned."""
        added = [block for block in dict.fromkeys(blocks) if not self.has(block)]
        self._pinned.update(dict.fromkeys(added, 1))
        return added

    def unpin(self, blocks: Sequence[int]) -> None:
        """Remove one user from each of `blocks`. Unused ones stay cached; a prompt's last block is evicted first."""
        for block in reversed(blocks):
            users = self._pinned[block] - 1
            if users:
                self._pinned[block] = users
            else:
                del self._pinned[block]
                self._idle[block] = self.block_tokens
                self.idle_tokens += self.block_tokens
                self.free += self.block_tokens

    def keep(self, session: str, tokens: int) -> None:
        """Cache the context of a session that waits for its next round. Its tokens must have been freed before."""
        self.drop(session)
        self._idle[session] = tokens
        self.idle_tokens += tokens
        self.take(0)

    def held(self, session: str) -> int:
        """Return the tokens of a session that are cached here."""
        return self._idle.get(session, 0)

    def drop(self, session: str) -> int:
        """Forget a session; return how many of its tokens were cached."""
        tokens = self._idle.pop(session, 0)
        self.idle_tokens -= tokens
        return tokens


class CachedBlocks:
    """A read-only view of the prefix blocks of one cache, for routers."""

    __slots__ = ("_cache",)

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def __contains__(self, block: object) -> bool:
        return isinstance(block, int) and self._cache.has(block)
