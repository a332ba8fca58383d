"""Prompts whose KV cache is here already, so that all that is left is to hand it over to the server that decodes.

A router that decides late who decodes lets a server prefill for itself, and asks it for the hand-over afterwards. That
takes one short step, and a client waits for it. So these go before other prompts, also between the chunks of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pdplugins.hosts.sglang.prompts import rest_tokens


class HandOvers:
    """The hand-overs among the prompts that wait to be prefilled for others. Call it with that role bound."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def queue(self, scheduler: Any, requests: Iterable[Any]) -> None:
        """Put requests into the waiting queue, hand-overs before all that are none."""
        before, new = self.waiting(scheduler.waiting_queue), list(requests)
        self._found = before + [request for request in new if _hands_over(request, scheduler)]
        scheduler.waiting_queue = self._found + _without(self._found, [*scheduler.waiting_queue, *new])

    def waiting(self, queue: Iterable[Any]) -> list[Any]:
        """Return the hand-overs of a waiting queue that have not been tried between two chunks."""
        there = {id(request) for request in queue}
        return [request for request in self._found if id(request) in there]

    @contextmanager
    def alone(self, scheduler: Any, chunked: Any) -> Iterator[None]:
        """Show SGLang a waiting queue of hand-overs. :param chunked: the prompt that is in the middle of its chunks."""
        queue = scheduler.waiting_queue
        self._found = self.waiting(queue)
        shown = self._tried(scheduler, rest_tokens(chunked))
        scheduler.waiting_queue = list(shown)
        try:
            yield
        finally:
            scheduler.waiting_queue = scheduler.waiting_queue + _without(shown, queue)

    def _tried(self, scheduler: Any, reserved_tokens: int) -> list[Any]:
        """Return the hand-overs of a step between two chunks. Each has one try, and then is a prompt like others.

        What they hold cannot be evicted until it is sent. So they leave what the chunks to come need: SGLang has given
        it to that prompt, and ends the server where it is not there. One step has only one where pages have several
        tokens: SGLang could make chunks of a second one, and can hold one such prompt.
        """
        page = max(int(scheduler.page_size), 1)
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        free -= reserved_tokens
        shown: list[Any] = []
        while self._found and (page == 1 or not shown):
            request = self._found.pop(0)
            held = request.seqlen + 2 * page
            if held <= free and _hands_over(request, scheduler):
                shown.append(request)
                free -= held
        return shown


def _hands_over(request: Any, scheduler: Any) -> bool:
    """Tell whether the KV cache of a prompt is here, but for what SGLang computes in any case.

    A streaming session is left alone: to look for it in the cache would change what it holds.
    """
    if getattr(request, "session", None) is not None:
        return False
    request.init_next_round_input(scheduler.tree_cache)
    return rest_tokens(request) <= max(int(scheduler.page_size), 1)


def _without(some: Iterable[Any], requests: Iterable[Any]) -> list[Any]:
    known = {id(request) for request in some}
    return [request for request in requests if id(request) not in known]
