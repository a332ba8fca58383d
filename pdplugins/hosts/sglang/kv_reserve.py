"""Keeps KV capacity free for prefill on a server that also decodes.

A decode server reserves KV cache for a request before its prefill starts on another server. Two servers that are full
of such reservations deadlock: each waits for a prefill on the other one, which has no free KV cache. Stock SGLang, with
one role for each server, cannot get there. So reservations leave some KV cache and a request slot for prefill.
"""

from __future__ import annotations

from typing import Any

from pdplugins.hosts.sglang.prompts import rest_tokens
from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.scope import Scopes


class PrefillReserve:
    """Keeps a share of the KV cache and of the request slots away from reservations of the decode role."""

    def __init__(self, share: float) -> None:
        self._share = share

    def left(self, budget: int, queue: Any, scopes: Scopes, just_reserved: int) -> int:
        """Return what is left of `budget` tokens for the decode role, whose queue of reservations is `queue`.

        A decode role that holds nothing gets all of the budget. When the KV cache is empty too, it also gets the tokens
        that SGLang reserves for the output of each request: a request may need the whole cache, and would wait forever.

        :param just_reserved: requests that got a reservation a moment ago and are in no queue yet.
        """
        scheduler = queue.scheduler
        decode_waits = scopes.peek(EngineRole.DECODE, "waiting_queue")
        if not (just_reserved or queue.transfer_queue.queue or decode_waits or scheduler.running_batch.reqs):
            spare: int = queue.num_reserved_decode_tokens if budget >= queue.max_total_num_tokens else 0
            return budget + spare - rest_tokens(scheduler.chunked_req)
        slots = queue.req_to_token_pool
        if slots.available_size() <= max(int(self._share * slots.size), 1):
            return min(budget, 0)
        return budget - max(
            int(self._share * queue.max_total_num_tokens),
            rest_tokens(scheduler.chunked_req),
            _longest(scopes),
        )


def _longest(scopes: Scopes) -> int:
    """Tokens of the longest prompt that waits for prefill here."""
    queues = (
        scopes.peek(EngineRole.LOCAL, "waiting_queue"),
        scopes.peek(EngineRole.PREFILL, "waiting_queue"),
        scopes.peek(EngineRole.PREFILL, "disagg_prefill_bootstrap_queue").queue,
    )
    return max((request.seqlen for queue in queues for request in queue), default=0)
