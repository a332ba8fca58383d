"""Dynamo's forward-pass metrics, what an engine says of its queue and its last step, as the load of a worker.

The planner's plugins get them as messages, the offline replay as flat mappings; both become a `ForwardPass` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pdplugins.contracts.workers import Role, WorkerLoad


class ForwardPass(NamedTuple):
    """Requests and tokens of one engine, or of all data-parallel ranks of one worker, by phase."""

    queued_prefills: float
    queued_prefill_tokens: float
    queued_decodes: float
    """Requests that were preempted."""
    queued_decode_tokens: float
    prefills: float
    prefill_tokens: float
    decodes: float
    decode_tokens: float

    def plus(self, other: ForwardPass) -> ForwardPass:
        """Return the sums."""
        return ForwardPass(*(mine + others for mine, others in zip(self, other, strict=True)))


def from_message(metrics: Any) -> ForwardPass:
    """Read a ``ForwardPassMetrics``, which planner plugins decode."""
    queued, running = metrics.queued_requests, metrics.scheduled_requests
    return ForwardPass(
        float(queued.num_prefill_requests),
        float(queued.sum_prefill_tokens),
        float(queued.num_decode_requests),
        float(queued.sum_decode_kv_tokens),
        float(running.num_prefill_requests),
        float(running.sum_prefill_tokens),
        float(running.num_decode_requests),
        float(running.sum_decode_kv_tokens),
    )


def from_snapshot(row: Mapping[str, Any]) -> ForwardPass:
    """Read a row of the offline replay's snapshot. Raises KeyError, TypeError or ValueError where a field is wrong."""
    return ForwardPass(
        float(row["num_queued_prefill"]),
        float(row["sum_queued_prefill_tokens"]),
        float(row["num_queued_decode"]),
        float(row["sum_queued_decode_kv_tokens"]),
        float(row["num_prefill_requests"]),
        float(row["sum_prefill_tokens"]),
        float(row["num_decode_requests"]),
        float(row["sum_decode_kv_tokens"]),
    )


def worker_load(role: Role, worker: str, seen: ForwardPass) -> WorkerLoad:
    """Return the load of a worker.

    Requests that wait for KV capacity on a decode worker are queued there as prefills; they and the preempted count.
    """
    prefill = role is Role.PREFILL
    return WorkerLoad(
        worker,
        queued_requests=seen.queued_prefills if prefill else seen.queued_decodes + seen.queued_prefills,
        queued_tokens=seen.queued_prefill_tokens if prefill else seen.queued_decode_tokens + seen.queued_prefill_tokens,
        running_requests=seen.prefills if prefill else seen.decodes,
        running_tokens=seen.prefill_tokens if prefill else seen.decode_tokens,
        decode_requests=seen.decodes,
        decode_tokens=seen.decode_tokens,
        prefill_tokens=seen.prefill_tokens,
    )
