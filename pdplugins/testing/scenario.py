"""What a host is asked to run, and the seams that a host may fill in. See `pdplugins.testing.hosts`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import ClassVar, TypeVar
from unittest import SkipTest

from pdplugins.contracts.batching import BatchScheduler
from pdplugins.contracts.flow import Flow
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.router import Ending, Router


class Seam(StrEnum):
    """What a host may fill in. The value ends the sentence "this host …"."""

    WORKER_TP = "says the tensor-parallel size of each worker"
    FREE_KV = "says the free KV tokens of each worker"
    CAPABILITIES = "says what each worker can do"
    LOAD_BY_PHASE = "says the load of each worker by phase"
    PLACED_LOADS = "shows in its loads what was placed, or says of which time they are"
    SAME_TUPLE = "passes the same tuple of workers as long as nothing has changed"
    FINISHED = "tells a router of each request that finished, once, with its length"
    FAILED = "tells a router of each request that failed, once"
    CANCELLED = "tells a router of each request whose client left, once"
    ROUTER_FAULTS = "serves on when a router raises or names unknown workers, and counts it"
    PLANS_AHEAD = "lets a router that plans ahead do so between requests, on the workers that are ready"
    HOLDS = "lets requests wait where the flow policy holds, and asks again when one has ended"
    REFUSES = "refuses what the flow policy refuses"
    BATCHES = "asks a batch scheduler what each worker runs next, and tells it of each step"
    OWN_TPOTS = "tells a batch scheduler the TPOT of each running decode that has one of its own"
    PLANNER_VIEW = "tells the planner the workers that are ready and the traffic"
    PLANNER_POOLS = "starts and stops workers as the planner wants"
    PLANNER_FAULTS = "keeps its workers when a planner raises or answers nonsense, and counts it"
    GPU_BUDGET = "holds no more GPUs than its budget, whatever the planner wants"
    PLANNER_ROLES = "changes roles as the planner wants, and tells it"
    ROUTER_ROLES = "changes roles as the router proposes, and tells it"
    POWER_ROLES = "changes roles as the power controller proposes, and tells it"
    POWER_CAPS = "sets the power caps that the power controller wants"
    ZERO_OF_A_ROLE = "serves with no worker of one role where every worker can do both phases"


class NotFilledError(Exception):
    """Raise it in `HostTests.run` for a scenario with something that the host has no place for."""


@dataclass(frozen=True)
class Job:
    """One request of a client."""

    arrival_s: float = 0.0
    prompt_tokens: int = 100
    output_tokens: int = 5
    leaves_after_s: float | None = None
    """Seconds after which its client goes away, while it is served."""
    fails: bool = False
    """Whether the host makes it fail, in whichever way it can."""
    tpot_s: float | None = None
    """TPOT that it asks for itself."""


@dataclass(frozen=True)
class Scenario:
    """What a host runs: workers, clients and policies. What is None the host does without.

    Each worker holds one GPU, and starts within two seconds.
    """

    jobs: tuple[Job, ...]
    router: Router | None = None
    prefill: int = 1
    """Workers at start."""
    decode: int = 1
    gpu_budget: int = 8
    any_role: bool = False
    """Whether every worker can do both phases."""
    flow: Flow | None = None
    batch: Callable[[], BatchScheduler] | None = None
    """Makes one scheduler for each worker."""
    planner: Planner | None = None
    power: PowerController | None = None


@dataclass(frozen=True)
class Served:
    """What came of a scenario."""

    endings: tuple[Ending, ...]
    """Of each job, in their order, as its client saw it; empty where the workers that serve them are not the host's."""
    faults: Mapping[Kind, int] = field(default_factory=dict)
    """Answers that were not followed, by kind of policy."""


class HostTests:
    """What every class of tests of a host needs: what the host lacks, and how it runs a scenario."""

    not_filled: ClassVar[Mapping[Seam, str]] = {}
    """Seams that the host lacks, with the reason."""

    @abstractmethod
    def run(self, scenario: Scenario) -> Served:
        """Serve all jobs of `scenario` under its policies, and return when the last one has ended."""
        raise NotImplementedError


T = TypeVar("T", bound="HostTests")


def fills(seam: Seam) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
    """Mark the test of a seam. Where a host says that it lacks the seam, the test is skipped if that is still true."""

    def mark(test: Callable[[T], None]) -> Callable[[T], None]:
        @wraps(test)
        def run(self: T) -> None:
            if (reason := self.not_filled.get(seam)) is None:
                return test(self)
            try:
                test(self)
            except (AssertionError, NotFilledError):
                raise SkipTest(f"{seam.name}: {reason}") from None
            raise AssertionError(f"this host {seam}, take {seam.name} out of not_filled ({reason})")

        return run

    return mark
