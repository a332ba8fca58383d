"""Workers, tasks and a performance model with times that a reader can check by head."""

from __future__ import annotations

from pdplugins import testing
from pdplugins.testing import LinearModel, Worker, deployment
from pdplugins.types import QueuedPrefill, Request

TOKEN_S = 0.001


PERF = LinearModel(
    prefill_token_s=TOKEN_S,
    prefill_square_s=1e-9,
    decode_fixed_s=0.010,
    decode_request_s=0.001,
    transfer_fixed_s=0.002,
    transfer_token_s=1e-5,
    tps=(1, 2, 4),
    scales=True,
)
"""A millisecond a token, attention 1 us for each pair of a new token and a thousand earlier ones; no constants."""
DEPLOYMENT = deployment(PERF, ttft_s=1.0, tpot_s=0.1, gpu_budget=16, max_batch=64)


def worker(
    name: str,
    ttft_s: float | None = None,
    tbt_s: float | None = None,
    queued: float = 0,
    running: float = 0,
    capacity: int = 100_000,
    tp: int | None = None,
    **more: float,
) -> Worker:
    """Return a worker; `more` are attributes of its load."""
    load = {"queued_requests": 1 if queued else 0, "running_requests": 1 if running else 0} | more
    return testing.worker(
        name,
        kv_capacity_tokens=capacity,
        tp=tp,
        queued_tokens=queued,
        running_tokens=running,
        recent_ttft_s=ttft_s,
        recent_tbt_s=tbt_s,
        **load,
    )


def task(name: str, new: int, queued_s: float = 0.0, history: int = 0) -> QueuedPrefill:
    request = Request(name, queued_s, history + new, history_tokens=history)
    return QueuedPrefill(request, new, queued_s, history)
