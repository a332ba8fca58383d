"""A router plugin that does what the name of a request says: ``FIRST,SECOND,SPLIT,…``; SECOND may be open.

A worker that takes no work now makes it fail, and the gateway then goes by its own rule, as with any router.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pdplugins
from pdplugins.registry import Register
from pdplugins.types import Deployment, Placement, Request, WorkerView

OPEN = "open"
"""As SECOND: decided when the prefill is done; then the other worker decodes."""


def name_of(first: str, second: str, split: int, number: str) -> str:
    """Return the name of a request that is to be placed so."""
    return f"{first},{second},{split},{number}"


class Named:
    """Reads each placement from the name of its request."""

    def __init__(self, settings: Any, deployment: Deployment) -> None:
        pass

    def on_arrival(self, request: Request, workers: Sequence[WorkerView], now_s: float) -> Placement:
        """Place it as its name says."""
        first, second, split = request.id.split(",")[:3]
        there = {worker.id for worker in workers}
        if not {first, second} <= there | {OPEN}:
            raise LookupError(f"{first} or {second} takes no work")
        return Placement(first, None if second == OPEN else second, int(split))

    def on_prefill_done(
        self, request: Request, placement: Placement, workers: Sequence[WorkerView], now_s: float
    ) -> Placement:
        """Let another worker decode, where there is one."""
        others = [worker.id for worker in workers if worker.id != placement.first]
        return replace(placement, second=others[0] if others else placement.first)


@pdplugins.hookimpl
def pd_register_routers(register: Register) -> None:
    """Add ``named``."""
    register("named", Named)
