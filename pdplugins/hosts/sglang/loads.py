"""The load report of a dual-role instance: SGLang's own counts the decode role, here the other two are added."""

from __future__ import annotations

from typing import Any

from pdplugins.hosts.sglang.prompts import rest_tokens
from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.scope import Scopes


def add_roles(snapshot: Any, scopes: Scopes, chunked: Any | None) -> None:
    """Add to `snapshot` what waits for prefill here; `chunked` is the prompt in the middle of its chunks."""
    local = scopes.peek(EngineRole.LOCAL, "waiting_queue")
    ready = scopes.peek(EngineRole.PREFILL, "waiting_queue")
    meeting = scopes.peek(EngineRole.PREFILL, "disagg_prefill_bootstrap_queue").queue
    sending = scopes.peek(EngineRole.PREFILL, "disagg_prefill_inflight_queue")
    waiting = [*local, *ready, *meeting]
    uncached = sum(max(request.seqlen - request.num_matched_prefix_tokens, 0) for request in waiting)
    uncached += rest_tokens(chunked)
    snapshot.num_waiting_reqs += len(waiting)
    snapshot.num_waiting_uncached_tokens += uncached
    snapshot.num_total_tokens += sum(request.seqlen for request in waiting)
    if snapshot.queues is not None:
        snapshot.queues.waiting += len(local) + len(ready)
    if snapshot.disaggregation is not None:
        snapshot.disaggregation.prefill_bootstrap_queue_reqs = len(meeting)
        snapshot.disaggregation.prefill_inflight_queue_reqs = len(sending)
