"""The KV cache of one engine, counted in tokens.

Tokens are private to a request, or in blocks that requests with the same prefix share. What no request uses stays as a
cache, least recently used out first, until its tokens are needed: prefix blocks, and the contexts of sessions between
two rounds. Counting tokens instead of pages is exact for page size 1, SGLang's default, and off by half a page for each
request otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

Key = int | str
"""A prefix block by its hash, or a session by its name."""


class KvCache:
    """Holds `capacity` tokens; a prefix block holds `block_tokens`."""

    __slots__ = ("_idle", "_pinned", "block_tokens", "capacity", "free", "idle_tokens")

    def __init__(self, capacity: int, block_tokens: int = 512) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.free = capacity
        """Tokens that a request may take: free ones, and those that are only cached."""
        self.idle_tokens = 0
        self._idle: dict[Key, int] = {}
        self._pinned: dict[int, int] = {}

    def take(self, tokens: int) -> None:
        """Use `tokens` of `free`, evicting what is only cached where that is needed."""
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
        """Tell whether a prefix block is here."""
        return block in self._pinned or block in self._idle

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are here."""
        for count, block in enumerate(blocks):
            if not self.has(block):
                return count
        return len(blocks)

    def pin(self, blocks: Sequence[int]) -> None:
        """Keep blocks that are here for one more request."""
        for block in blocks:
            users = self._pinned.get(block, 0)
            if not users:
                self.idle_tokens -= self._idle.pop(block)
                self.free -= self.block_tokens
            self._pinned[block] = users + 1
        self.take(0)

    def idle_among(self, blocks: Sequence[int]) -> int:
        """Return the tokens of those blocks that are here and that no request uses."""
        return sum(self.block_tokens for block in blocks if block in self._idle)

    def share(self, blocks: Sequence[int]) -> list[int]:
        """Turn private tokens of a request into blocks for all; return those that were not here before, now pinned."""
        added = [block for block in dict.fromkeys(blocks) if not self.has(block)]
        self._pinned.update(dict.fromkeys(added, 1))
        return added

    def unpin(self, blocks: Sequence[int]) -> None:
        """Let go of pinned blocks. They stay cached; of one prompt the last block goes out first."""
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
        """Cache the context of a session that waits for its next round; its tokens are free already."""
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
