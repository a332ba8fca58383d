"""Input and output of a simulation, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdplugins.contracts.workers import Role
from pdplugins.results import Scaling
from pdplugins.sim.core.engine_settings import EngineSettings
from pdplugins.sim.core.policy_clock import PolicyClock
from pdplugins.sim.core.power import PowerCurve
from pdplugins.sim.core.records import Gaps, Record
from pdplugins.sim.core.worker import Hardware


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Settings of a simulation that are not in a `Deployment`."""

    prefill: int = 1
    """Prefill workers at start."""
    decode: int = 1
    engine: EngineSettings = field(default_factory=EngineSettings)
    kv_tokens: int | None = None
    """Tokens of KV cache of each worker; None for what the profile says."""
    hardware: Mapping[Role, Hardware] = field(default_factory=dict)
    """GPUs of the workers of a role, where they differ from the deployment's."""
    extra: tuple[tuple[Role, Hardware], ...] = ()
    """More workers at start, each with its own kind of GPU."""
    frontend_s: float = 0.0
    """Seconds that a frontend works on each request, one after the other, before a router sees it."""
    first_token: Literal["prefill", "transfer", "decode"] = "decode"  # noqa: S105 - no password
    """What gives the client the first token of a request that decodes on another worker: see docs/simulator.md."""
    overlap: bool = False
    """Send the KV cache of each chunk of a prompt while the next one computes, instead of all of it at the end."""
    history: Literal["transfer", "recompute"] = "transfer"
    """How a worker gets the history of a session whose KV cache is on another one."""
    flip: Literal["drain", "label"] = "drain"
    """How a worker changes its role: it drains first, or it serves both phases and only a label changes."""
    flip_s: float = 0.0
    """Seconds that a drained worker needs to change its role."""
    drain_deadline_s: float | None = None
    """Seconds in which a worker that changes its role must drain, or the change is rolled back; None for no limit."""
    when_full: Literal["stay", "wait"] = "stay"
    """What a decoding request does whose second worker lacks free KV capacity: decode on where it is, or wait."""
    late_handoff_s: float | None = None
    """Seconds until a hand-over that the router chose after prefill reaches the worker that has prefilled, as a request
    of its own: it takes a step of one token there, before all prompts. None: it begins at once, and takes no step."""
    late_step_s: float = 0.0
    """Seconds that this step takes beyond one of a token, for each hand-over in it."""
    late_step_token_s: float = 0.0
    """And for each token of its KV cache."""
    polled_handoff: bool = False
    """Workers see a hand-over that was chosen late, and a KV cache that has arrived, only between two steps."""
    handoff_timeout_s: float = 300.0
    """How often to look for workers in deadlock over KV capacity, in seconds (Dynamo's handoff_session_timeout)."""
    retries: int = 3
    """How often a request may start again after a worker died. Its output so far becomes part of its prompt."""
    deaths: tuple[tuple[float, str], ...] = ()
    """(second, worker) for each worker that dies."""
    predict: Literal["nothing", "true_length"] = "nothing"
    """What a router is told about the length of the answer."""
    power: PowerCurve | None = None
    """What power caps do to all GPUs; None for what the profile of each says."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of a simulation."""

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
    """Scheduled deaths of workers that did not exist at that time."""
    handoffs: int
    """Requests that went on to a second worker."""
    handoff_s: float
    """Seconds that those requests waited for KV capacity and sent KV cache, in total."""
    events: int
