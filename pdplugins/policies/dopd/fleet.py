"""Whole workers: what of a plan fits the GPUs, and when a pool may shrink. Shared by every way to compute a demand."""

from __future__ import annotations

from collections import deque

from pdplugins.types import Deployment


def fit_budget(prefill: int, decode: int, deployment: Deployment) -> tuple[int, int]:
    """Return the pools that are used of a wish that may not fit.

    Where the budget binds, the pools with the largest throughput that fit: both phases keep as equal a share of their
    wish as whole workers allow, which is Eq. 15 scaled down. At least one worker of each role; never over the budget.
    """
    if deployment.gpus(prefill, decode) <= deployment.gpu_budget:
        return prefill, decode

    def served(pools: tuple[int, int]) -> tuple[float, int]:
        share = min(pools[0] / prefill, pools[1] / decode)
        return share, -deployment.gpus(*pools)

    most_decode = (deployment.gpu_budget - deployment.prefill_tp) // deployment.decode_tp
    candidates = []
    for d in range(1, min(decode, most_decode) + 1):
        room = (deployment.gpu_budget - d * deployment.decode_tp) // deployment.prefill_tp
        candidates.append((min(prefill, room), d))
    return max(candidates, key=served)


class Hold:
    """Lets a pool shrink only to the most that was wanted in the last `seconds`; growth passes at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wanted: deque[tuple[float, int]] = deque()

    def __call__(self, wanted: int, now_s: float) -> int:
        """Return the workers to keep at `now_s` when `wanted` are wanted."""
        # Later wishes that are as large make earlier ones irrelevant, so the queue falls from left to right.
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_s, wanted))
        while now_s - self._wanted[0][0] > self._seconds:
            self._wanted.popleft()
        return self._wanted[0][1]

    def forget(self) -> None:
        """Let the pool shrink at once."""
        self._wanted.clear()
