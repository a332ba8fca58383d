"""What routers see of a worker: the gateway's own books, which are up to date, plus the load that others put there.

Nothing here knows an engine or HTTP, so any host that sends requests itself can keep these books.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from time import monotonic

from pdplugins.contracts.workers import Capabilities, Role

BLOCK_TOKENS = 512
"""Tokens of one prefix block, as in traces and policies."""
MOST_BLOCKS = 2**18
"""Blocks of one worker that are kept in mind, whatever it says of its KV cache: 134 million tokens."""
WINDOW_S = 5.0
"""Recent means cover the last one to two of these."""


class RecentMean:
    """The mean of what was seen in the last five to ten seconds, in constant space."""

    __slots__ = ("_before", "_now", "_until_s")

    def __init__(self) -> None:
        self._before = (0.0, 0)
        self._now = (0.0, 0)
        self._until_s = 0.0

    def add(self, value: float, now_s: float, times: int = 1) -> None:
        """Take in one value, or several of the same."""
        self._turn(now_s)
        total, count = self._now
        self._now = total + value * times, count + times

    def mean(self, now_s: float) -> float | None:
        """Return the mean; None when nothing was seen."""
        self._turn(now_s)
        total, count = self._now[0] + self._before[0], self._now[1] + self._before[1]
        return total / count if count else None

    def _turn(self, now_s: float) -> None:
        if now_s < self._until_s:
            return
        fresh = now_s < self._until_s + WINDOW_S
        self._before = self._now if fresh else (0.0, 0)
        self._now = (0.0, 0)
        self._until_s = now_s + WINDOW_S


class LoadBook:
    """A `pdplugins.types.LoadView`: own requests exactly, and those of others as the worker's last report showed."""

    __slots__ = (
        "_other_requests", "_other_running", "_other_tokens", "_own_queued", "_own_queued_tokens", "_own_running",
        "_own_running_tokens", "_prefill_history", "_step_tokens", "_tbt", "_ttft", "on_freed", "worker",
    )  # fmt: skip

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.on_freed: Callable[[], None] | None = None
        """Is called when a prefill or a request has ended here, or the worker has reported: new work may fit now."""
        self._own_queued = self._own_queued_tokens = self._own_running = self._own_running_tokens = 0
        self._other_requests = self._other_running = self._other_tokens = 0
        self._prefill_history = 0
        self._step_tokens: int | None = None
        self._ttft = RecentMean()
        self._tbt = RecentMean()

    # --- as routers see it ---------------------------------------------------------------------------------------

    @property
    def queued_requests(self) -> int:
        """Requests whose prefill has not ended."""
        return self._own_queued + self._other_requests

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait for prefill."""
        return self._own_queued_tokens + self._other_tokens

    @property
    def running_requests(self) -> int:
        """Requests that decode, or wait for their KV cache to do so."""
        return self._own_running + self._other_running

    @property
    def running_tokens(self) -> int:
        """Context of the requests that decode."""
        return self._own_running_tokens

    @property
    def decode_requests(self) -> int:
        """Requests that decode, or wait for their KV cache to do so."""
        return self._own_running + self._other_running

    @property
    def decode_tokens(self) -> int:
        """Context of the own requests that decode."""
        return self._own_running_tokens

    @property
    def prefill_tokens(self) -> int | None:
        """Prompt tokens in the current step; None where the worker does not say."""
        return self._step_tokens

    @property
    def prefill_history_tokens(self) -> int:
        """Tokens of the own prompts in prefill that need not be computed."""
        return self._prefill_history

    @property
    def recent_ttft_s(self) -> float | None:
        """Mean time to first token of prompts that were prefilled here lately."""
        return self._ttft.mean(monotonic())

    @property
    def recent_tbt_s(self) -> float | None:
        """Mean time between tokens here lately; None when nothing decodes."""
        return self._tbt.mean(monotonic()) if self._own_running else None

    # --- the books -----------------------------------------------------------------------------------------------

    def prefill_starts(self, tokens: int, history: int = 0) -> None:
        """Note a prompt of which `tokens` have to be computed, and `history` tokens not."""
        self._own_queued += 1
        self._own_queued_tokens += tokens
        self._prefill_history += history

    def prefill_ends(self, tokens: int, took_s: float | None = None, history: int = 0) -> None:
        """Note the end of that, and how long after its arrival it came; None when it failed."""
        self._own_queued -= 1
        self._own_queued_tokens -= tokens
        self._prefill_history -= history
        if took_s is not None:
            self._ttft.add(took_s, monotonic())
        self._freed()

    def decode_starts(self, tokens: int) -> None:
        """Note a request with a context of `tokens`."""
        self._own_running += 1
        self._own_running_tokens += tokens

    def tokens(self, count: int, gap_s: float | None, now_s: float) -> None:
        """Note tokens, each `gap_s` after the one before it; None for a first token, which has none before it."""
        self._own_running_tokens += count
        if gap_s is not None:
            self._tbt.add(gap_s, now_s, count)

    def decode_ends(self, tokens: int) -> None:
        """Note the end of a request with a context of `tokens`."""
        self._own_running -= 1
        self._own_running_tokens -= tokens
        self._freed()

    def reported(self, running: int, waiting: int, waiting_tokens: int, step_tokens: int | None = None) -> None:
        """Take in the worker's own counts of requests and of waiting tokens: the surplus over ours is of others.

        :param step_tokens: prompt tokens in its current step; None where it does not say.
        """
        self._step_tokens = step_tokens
        others = max(running + waiting - self._own_running - self._own_queued, 0)
        self._other_requests = min(others, waiting)
        self._other_running = others - self._other_requests
        self._other_tokens = max(waiting_tokens - self._own_queued_tokens, 0) if self._other_requests else 0
        self._freed()

    def _freed(self) -> None:
        if self.on_freed is not None:
            self.on_freed()


class CachedBlocks:
    """Hashes of the prefix blocks that a worker should have cached: those of the prompts that it got last."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: object) -> bool:
        return block in self._hashes

    def add(self, blocks: Iterable[int], capacity_tokens: int) -> None:
        """Note the blocks of a prompt; the least recent ones go when the KV cache would be full."""
        hashes = self._hashes
        for block in blocks:
            hashes[block] = None
            hashes.move_to_end(block)
        most = min(max(capacity_tokens // BLOCK_TOKENS, 1), MOST_BLOCKS)
        while len(hashes) > most:
            hashes.popitem(last=False)

    def clear(self) -> None:
        """Forget all: the worker has started anew."""
        self._hashes.clear()


class WorkerBook:
    """A `pdplugins.types.WorkerView` of one worker."""

    __slots__ = ("cached_blocks", "capabilities", "id", "kv_capacity_tokens", "load", "role", "tp", "used_kv_tokens")

    def __init__(self, worker: str, role: Role, kv_capacity_tokens: int = 0) -> None:
        self.id = worker
        self.role = role
        self.load = LoadBook(worker)
        self.kv_capacity_tokens = kv_capacity_tokens
        self.cached_blocks = CachedBlocks()
        self.tp: int | None = None
        self.capabilities: Capabilities | None = None
        """None until the worker has said what it is."""
        self.used_kv_tokens: int | None = None
        """Tokens of KV cache that are in use and cannot be evicted, as the worker said last; None before it has."""

    @property
    def free_kv_tokens(self) -> int | None:
        """Tokens of KV cache that new requests may take; None before the worker has said."""
        return None if self.used_kv_tokens is None else max(self.kv_capacity_tokens - self.used_kv_tokens, 0)
