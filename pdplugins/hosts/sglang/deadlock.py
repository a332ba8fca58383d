"""Ends deadlocks over KV capacity: the youngest reservations are given up until the prompt that waits fits.

Two servers can each hold a reservation for a prompt that does not fit on the other one. And while a retracted request
waits for KV cache, SGLang does not look at its transfers, although only they may free some.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pdplugins.hosts.sglang.prompts import rest_tokens
from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.scope import Scopes

log = logging.getLogger(__name__)

SHARE = 0.1
"""Share of the time for which SGLang lets a reservation wait for its KV cache
(`SGLANG_DISAGGREGATION_WAITING_TIMEOUT`): when nothing has run for so long, it is a deadlock."""
REASON = "pdplugins: deadlock over KV cache: this reservation for another server's prompt was given up; ask again"


class DeadlockWatch:
    """Watches the steps of a dual-role engine. :param clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None

    def look(self, scheduler: Any, scopes: Scopes, *, ran: bool) -> None:
        """Look at the step that was just composed, with the decode role bound. :param ran: whether it runs anything."""
        prealloc, transfers = scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue
        waiting = needed_tokens(scheduler, scopes)
        if prealloc.retracted_queue and transfers.queue:
            scheduler.waiting_queue.extend(transfers.pop_transferred())
        if ran or not waiting or not transfers.queue:
            self._since_s = None
            return
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= SHARE * prealloc.kv_manager.waiting_timeout:
            self._since_s = now_s
            for reservation in youngest(transfers.queue, min(waiting)):
                give_up(reservation)


def needed_tokens(scheduler: Any, scopes: Scopes) -> list[int]:
    """Return the tokens that the first prompt, or retracted request, of each queue still needs."""
    queues: tuple[Sequence[Any], ...] = (
        scopes.peek(EngineRole.LOCAL, "waiting_queue"),
        scopes.peek(EngineRole.PREFILL, "waiting_queue"),
        scheduler.disagg_decode_prealloc_queue.retracted_queue,
    )
    chunk = rest_tokens(scheduler.chunked_req)
    return [queue[0].seqlen for queue in queues if queue] + ([chunk] if chunk else [])


def youngest(reservations: Sequence[Any], tokens: int) -> Iterator[Any]:
    """Yield the youngest of `reservations` until they hold `tokens`."""
    for reservation in reversed(reservations):
        if tokens <= 0:
            return
        tokens -= reservation.req.seqlen
        yield reservation


def give_up(reservation: Any) -> None:
    """End the request of a reservation with an error; SGLang tells the server that prefills it."""
    receiver = reservation.kv_receiver
    log.error(
        "pdplugins: deadlock: reservation of request %s is given up, %s tokens",
        reservation.req.rid,
        reservation.req.seqlen,
    )
    receiver.abort()
    receiver.kv_mgr.record_failure(receiver.bootstrap_room, REASON)
