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
        """Return the hand-overs that are still in the waiting queue."""
        there = {id(request) for request in queue}
        return [request for request in self._found if id(request) in there]

    @contextmanager
    def alone(self, scheduler: Any) -> Iterator[None]:
        """Show SGLang a waiting queue of hand-overs, and no prompt in the middle of its chunks.

        It can hold only one such prompt. A hand-over never becomes one: what is left of it is no more than a page.
        """
        chunked, queue = scheduler.chunked_req, scheduler.waiting_queue
        shown = [request for request in self.waiting(queue) if _hands_over(request, scheduler)]
        scheduler.chunked_req, scheduler.waiting_queue = None, list(shown)
        try:
            yield
        finally:
            scheduler.chunked_req = chunked
            scheduler.waiting_queue = scheduler.waiting_queue + _without(shown, queue)


def _hands_over(request: Any, scheduler: Any) -> bool:
    """Tell whether the KV cache of a prompt is here, but for what SGLang computes in any case."""
    request.init_next_round_input(scheduler.tree_cache)
    return rest_tokens(request) <= max(int(scheduler.page_size), 1)


def _without(some: Iterable[Any], requests: Iterable[Any]) -> list[Any]:
    known = {id(request) for request in some}
    return [request for request in requests if id(request) not in known]
