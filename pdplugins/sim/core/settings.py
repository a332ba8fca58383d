"""What goes into a simulation and what comes out, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdplugins.contracts.workers import Role
from pdplugins.results import Scaling
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.fleet import Hardware
from pdplugins.sim.core.policy_clock import PolicyClock
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.records import Gaps, Record


@dataclass(frozen=True, slots=True)
class SimSettings:
    """What a simulation needs beyond what a `Deployment` says."""

    prefill: int = 1
    """Prefill workers at start."""
    decode: int = 1
    engine: EngineSettings = field(default_factory=EngineSettings)
    kv_tokens: int | None = None
    """Tokens of KV cache of each worker; what the profile says when None."""
    hardware: Mapping[Role, Hardware] = field(default_factory=dict)
    """GPUs of the workers of a role, where they are not the deployment's."""
    extra: tuple[tuple[Role, Hardware], ...] = ()
    """More workers at start, each on GPUs of its own kind."""
    first_token: Literal["prefill", "transfer", "decode"] = "decode"  # noqa: S105 - no password
    """Who gives the client the first token of a request that decodes on another worker: see docs/simulator.md."""
    overlap: bool = False
    """Send the KV cache of each chunk of a prompt while the next one computes, instead of all of it at the end."""
    history: Literal["transfer", "recompute"] = "transfer"
    """How a worker gets the history of a session whose KV cache is on another one."""
    flip: Literal["drain", "label"] = "drain"
    """How a worker changes its role: it drains first, or it serves both phases and only a label changes."""
    flip_s: float = 0.0
    """Seconds that a drained worker needs to change its role."""
    drain_deadline_s: float | None = None
    """Seconds within which a worker that changes its role must drain, else the change is rolled back; None for ever."""
    no_room: Literal["stay", "wait"] = "stay"
    """A request that decodes, and whose second worker lacks free KV capacity, decodes on where it is, or waits."""
    handoff_timeout_s: float = 300.0
    """How often to look for workers in deadlock over KV capacity, in seconds (Dynamo's handoff_session_timeout)."""
    retries: int = 3
    """How often a request starts anew when a worker dies; its tokens so far become part of its prompt."""
    deaths: tuple[tuple[float, str], ...] = ()
    """(second, worker) that dies then."""
    predict: Literal["nothing", "true_length"] = "nothing"
    """What a router is told of the length of the answer."""
    power: PowerCurve | None = None
    """What power caps do to all GPUs; what the profile of each says when None."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a simulation leaves behind."""

    records: list[Record]
    """In the order in which requests ended."""
    gaps: Gaps
    duration_s: float
    gpu_hours: float
    energy_j: float | None
    """What all GPUs drew; None where a profile does not say."""
    policies: PolicyClock
    scaling: list[Scaling]
    preemptions: int
    retries: int
    deaths_missed: int
    """Workers that were to die and were not there."""
    handoffs: int
    """Requests that went on to a second worker."""
    handoff_s: float
    """Seconds that they were on their way, over all: waiting for KV capacity, and sending KV cache."""
    events: int
