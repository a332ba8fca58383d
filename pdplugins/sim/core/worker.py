"""One simulated worker: its engine, its GPUs, and what runs there."""

from __future__ import annotations

from dataclasses import dataclass

from pdplugins.contracts.perf import PerfModel
from pdplugins.runtime.roster import Life, Member
from pdplugins.sim.core.engine import Engine
from pdplugins.sim.core.views import LiveView


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one worker."""

    perf: PerfModel
    tp: int
    kv_tokens: int | None = None
    """Tokens of KV cache; None for what the profile says."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker."""

    engine: Engine
    view: LiveView
    hardware: Hardware
    gpus: tuple[int, ...]
    started: int
    member: Member
    """The role authority's entry for this worker."""
    ended: int | None = None
    open: int = 0
    """Requests that were placed on it and have not left it."""
    gone: bool = False
    draining: bool = False
    watched: bool = False
    """Whether a timer runs for the requests that wait for free KV capacity on it."""

    @property
    def life(self) -> Life:
        """Its stage of life: starting, ready, draining or changing."""
        return self.member.life
