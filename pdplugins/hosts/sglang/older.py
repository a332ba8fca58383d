"""Fixes for SGLang 0.5.16 that later versions have themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.scope import Scopes

TIMEOUT_POLL = "_poll_timeout_aborts"
"""Where later versions look for time-outs; 0.5.16 does so only when it composes steps of local requests."""
POP_TRANSFERRED = "sglang.srt.disaggregation.decode.DecodeTransferQueue.pop_transferred"
"""Frees the KV cache of a transfer that was aborted; later versions wait until the sending server has confirmed."""
HOLD_S = 2.0
"""How long that KV cache is held: by then the sending server has heard of the abort and sends no more."""


FINISH = "sglang.srt.managers.schedule_batch.Req.update_finish_state"
"""Decides after each step whether a request has ended, and why."""


def stop_before_length(original: Callable[..., Any], request: Any, new_accepted_len: int = 1) -> Any:
    """Let a token that ends an answer do so also where it is the last one that was asked for.

    The first part of a split answer has a length of its own: without this, the next server would go on behind the end.
    """
    full = len(request.output_ids) >= request.sampling_params.max_new_tokens
    if full and not request.finished() and not request.to_finish:
        last = request.output_ids[-new_accepted_len:]
        if request._check_token_based_finish(last):
            return None
    return original(request, new_accepted_len)


class AbortedTransfers:
    """Holds the KV cache of transfers that were aborted here: it may still be written to. :param clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def pop(self, original: Callable[..., Any], queue: Any, rids_to_check: Sequence[str] | None = None) -> Any:
        """Let SGLang look at all transfers but those that are held."""
        now_s = self._clock()
        aborted = {waiting.req.rid for waiting in queue.queue if getattr(waiting.kv_receiver, "abort_notified", False)}
        self._since_s = {rid: self._since_s.get(rid, now_s) for rid in aborted}
        held = {rid for rid, since_s in self._since_s.items() if now_s - since_s < HOLD_S}
        if not held:
            return original(queue, rids_to_check)
        asked = [waiting.req.rid for waiting in queue.queue] if rids_to_check is None else rids_to_check
        return original(queue, [rid for rid in asked if rid not in held])


def is_older(scheduler: Any) -> bool:
    """Tell whether `scheduler` is one that needs what is here."""
    return not hasattr(scheduler, TIMEOUT_POLL)


def own_whole_row(request: Any, scheduler: Any) -> None:
    """Let a retracted request come back as the owner of all its tokens.

    It is restored into tokens of its own, then ``get_new_prebuilt_batch`` matches it with the radix cache, unless it
    has a node there. That match takes no lock, and the tokens restored for the prefix that it finds are never freed:
    the idle check calls that a leak and ends the server.
    """
    if is_older(scheduler):
        request.last_node = scheduler.tree_cache.root_node


def end_overdue(scheduler: Any, scopes: Scopes, running_batch: Any) -> None:
    """Abort local requests that have waited, and requests that have run, for longer than SGLang's time-outs allow.

    And those of the prefill role whose decode server has not come: NIXL's sender does not look at that time-out.
    """
    if not is_older(scheduler):
        return
    with scopes.enter(EngineRole.LOCAL):
        scheduler._abort_on_waiting_timeout()
        scheduler._abort_on_running_timeout(running_batch)
    meeting = scopes.peek(EngineRole.PREFILL, "disagg_prefill_bootstrap_queue")
    limit_s = meeting.kv_manager.bootstrap_timeout
    for request in meeting.queue:
        if 0 < request.time_stats.prefill_bootstrap_queue_entry_time < time.perf_counter() - limit_s:
            sender = request.disagg_kv_sender
            sender.abort()
            sender.kv_mgr.record_failure(sender.bootstrap_room, f"no decode server came within {limit_s:g} s")
