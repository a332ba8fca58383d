"""What a host fills in for the policies, as a test class: subclass `HostConformance`, and say how to `run` a scenario.

    class TestMyHost(HostConformance):
        not_filled = {Seam.POWER_ROLES: "this host has no power controller"}

        def run(self, scenario: Scenario) -> Served:
            ...  # start workers, send the jobs, ask the scenario's policies, stop

A host may lack a seam. It says so in `not_filled`, with the reason; its test then passes only as long as that is true.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import wraps
from typing import ClassVar, TypeVar

from pdplugins.contracts.flow import Flow
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import Planner
from pdplugins.contracts.power import PowerController
from pdplugins.contracts.request import Request
from pdplugins.contracts.roles import RoleChange, Stage
from pdplugins.contracts.router import Ending, Outcome, Router
from pdplugins.contracts.workers import Role
from pdplugins.testing.host_policies import (
    EverySecond,
    FlippingPower,
    HearingPlanner,
    LoggingRouter,
    MovingRouter,
    OneByOne,
    RaisingRouter,
    SilentRouter,
    UnknownRouter,
)
from pdplugins.testing.scripted import RecordingRouter


class Seam(StrEnum):
    """What a host may fill in. The value ends the sentence "this host …"."""

    WORKER_TP = "says the tensor-parallel size of each worker"
    FREE_KV = "says the free KV tokens of each worker"
    CAPABILITIES = "says what each worker can do"
    LOAD_BY_PHASE = "says the load of each worker by phase"
    SAME_TUPLE = "passes the same tuple of workers as long as nothing has changed"
    FINISHED = "tells a router of each request that finished, once, with its length"
    FAILED = "tells a router of each request that failed, once"
    CANCELLED = "tells a router of each request whose client left, once"
    ROUTER_FAULTS = "serves on when a router raises or names unknown workers, and counts it"
    HOLDS = "lets requests wait where the flow policy holds, and asks again when one has ended"
    REFUSES = "refuses what the flow policy refuses"
    PLANNER_ROLES = "changes roles as the planner wants, and tells it"
    ROUTER_ROLES = "changes roles as the router proposes, and tells it"
    POWER_ROLES = "changes roles as the power controller proposes, and tells it"
    ZERO_OF_A_ROLE = "serves with no worker of one role where every worker can do both phases"


class NotFilledError(Exception):
    """Raise it in `HostConformance.run` for a scenario with something that the host has no place for."""


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


@dataclass(frozen=True)
class Scenario:
    """What a host runs: workers, clients and policies. What is None the host does without."""

    jobs: tuple[Job, ...]
    router: Router
    prefill: int = 1
    """Workers at start."""
    decode: int = 1
    any_role: bool = False
    """Whether every worker can do both phases."""
    flow: Flow | None = None
    planner: Planner | None = None
    power: PowerController | None = None


@dataclass(frozen=True)
class Served:
    """What came of a scenario."""

    endings: tuple[Ending, ...]
    """Of each job, in their order, as its client saw it."""
    faults: Mapping[Kind, int] = field(default_factory=dict)
    """Answers that were not followed, by kind of policy."""


T = TypeVar("T", bound="HostConformance")


def fills(seam: Seam) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
    """Mark the test of a seam. Where a host says that it lacks the seam, the test holds it to that."""

    def mark(test: Callable[[T], None]) -> Callable[[T], None]:
        @wraps(test)
        def run(self: T) -> None:
            if (reason := self.not_filled.get(seam)) is None:
                return test(self)
            try:
                test(self)
            except (AssertionError, NotFilledError):
                return None
            raise AssertionError(f"this host {seam}, take {seam.name} out of not_filled ({reason})")

        return run

    return mark


FEW = tuple(Job(0.05 * index, 100 + index, 5 + index) for index in range(6))
LONG = tuple(Job(0.25 * index, 100, 5) for index in range(40))
"""Ten seconds of work, for what happens on a planner's tick."""


class HostConformance:
    """What a host promises to policies."""

    not_filled: ClassVar[Mapping[Seam, str]] = {}
    """Seams that the host lacks, with the reason."""

    @abstractmethod
    def run(self, scenario: Scenario) -> Served:
        """Serve all jobs of `scenario` under its policies, and return when the last one has ended."""
        raise NotImplementedError

    def test_what_is_not_filled_has_a_reason(self) -> None:
        """The reasons are for readers of the host's documentation."""
        assert all(isinstance(seam, Seam) and reason for seam, reason in self.not_filled.items())

    # --- what a router sees ------------------------------------------------------------------------------------------

    def _asked(self) -> RecordingRouter:
        router = RecordingRouter()
        served = self.run(Scenario(FEW, router, prefill=1, decode=2))
        assert served.endings == (Ending.FINISHED,) * len(FEW)
        assert len(router.asked) == len(FEW), "a router is asked once for each request"
        assert all(asked.workers for asked in router.asked)
        return router

    @fills(Seam.WORKER_TP)
    def test_workers_say_their_tensor_parallel_size(self) -> None:
        """As a whole number of GPUs."""
        assert all((w.tp or 0) >= 1 for asked in self._asked().asked for w in asked.looked)

    @fills(Seam.FREE_KV)
    def test_workers_say_their_free_kv_tokens(self) -> None:
        """No more than there are."""
        looked = [w for asked in self._asked().asked for w in asked.looked]
        assert all(w.free_kv_tokens is not None and 0 <= w.free_kv_tokens <= w.kv_capacity_tokens for w in looked)

    @fills(Seam.CAPABILITIES)
    def test_workers_say_what_they_can_do(self) -> None:
        """Their role at least."""
        looked = [w for asked in self._asked().asked for w in asked.looked]
        assert all(w.capabilities is not None and w.role in w.capabilities.phases for w in looked)

    @fills(Seam.LOAD_BY_PHASE)
    def test_workers_say_their_load_by_phase(self) -> None:
        """An idle fleet says zeros, not nothing."""
        loads = [w.load for asked in self._asked().asked for w in asked.looked]
        told = [(load.decode_requests, load.decode_tokens, load.prefill_tokens) for load in loads]
        assert not [one for one in told if None in one]

    @fills(Seam.SAME_TUPLE)
    def test_the_same_tuple_is_passed_while_nothing_changes(self) -> None:
        """A router may keep what it derives from it."""
        assert len({id(asked.workers) for asked in self._asked().asked}) == 1

    # --- how requests end --------------------------------------------------------------------------------------------

    def _ended(self, *jobs: Job) -> tuple[Served, Counter[Ending], list[tuple[Request, Outcome]]]:
        router = RecordingRouter()
        served = self.run(Scenario(jobs, router, prefill=1, decode=1))
        twice = [name for name, times in Counter(request.id for request, _ in router.ended).items() if times > 1]
        assert not twice, f"{twice} ended more than once"
        known = {asked.request.id for asked in router.asked}
        assert {request.id for request, _ in router.ended} <= known, "what ended was never placed"
        return served, Counter(outcome.ending for _, outcome in router.ended), router.ended

    @fills(Seam.FINISHED)
    def test_the_router_is_told_of_what_finished(self) -> None:
        """Once each, with the tokens that the client got."""
        _, endings, ended = self._ended(*FEW)
        assert endings == {Ending.FINISHED: len(FEW)}
        assert sorted(outcome.output_tokens for _, outcome in ended) == sorted(job.output_tokens for job in FEW)

    @fills(Seam.FAILED)
    def test_the_router_is_told_of_what_failed(self) -> None:
        """The others finish."""
        served, endings, _ = self._ended(FEW[0], replace(FEW[1], fails=True), FEW[2])
        assert served.endings == (Ending.FINISHED, Ending.FAILED, Ending.FINISHED)
        assert endings == {Ending.FINISHED: 2, Ending.FAILED: 1}

    @fills(Seam.CANCELLED)
    def test_the_router_is_told_of_clients_that_left(self) -> None:
        """Before the end of a long answer."""
        served, endings, ended = self._ended(Job(output_tokens=2000, leaves_after_s=0.5), FEW[1])
        assert served.endings == (Ending.CANCELLED, Ending.FINISHED)
        assert endings == {Ending.FINISHED: 1, Ending.CANCELLED: 1}
        assert all(o.output_tokens < 2000 for _, o in ended)

    # --- a bad router ------------------------------------------------------------------------------------------------

    @fills(Seam.ROUTER_FAULTS)
    def test_a_bad_router_does_not_stop_serving_and_is_counted(self) -> None:
        """The host places requests by its own way."""
        for router in (RaisingRouter(), UnknownRouter(), SilentRouter()):
            served = self.run(Scenario(FEW, router))
            assert served.endings == (Ending.FINISHED,) * len(FEW), type(router).__name__
            assert served.faults.get(Kind.ROUTER, 0) >= len(FEW), type(router).__name__

    # --- flow --------------------------------------------------------------------------------------------------------

    @fills(Seam.HOLDS)
    def test_what_the_flow_policy_holds_waits_and_is_placed_when_it_goes(self) -> None:
        """One request at a time: the router is asked for the next one only when the last one has ended."""
        log: list[tuple[str, str]] = []
        served = self.run(Scenario(FEW, LoggingRouter(log), flow=OneByOne(log)))
        assert served.endings == (Ending.FINISHED,) * len(FEW)
        names = [name for what, name in log if what == "arrived"]
        expected = [(what, name) for name in names for what in ("go", "placed", "ended")]
        assert [entry for entry in log if entry[0] != "arrived"] == expected

    @fills(Seam.REFUSES)
    def test_what_the_flow_policy_refuses_is_refused(self) -> None:
        """The client is told, and no router sees it."""
        router = RecordingRouter()
        served = self.run(Scenario(FEW, router, flow=EverySecond()))
        assert served.endings == (Ending.FINISHED, Ending.REFUSED) * (len(FEW) // 2)
        assert len(router.asked) == len(FEW) // 2

    # --- roles -------------------------------------------------------------------------------------------------------

    def _changed(self, changes: list[RoleChange], by: str) -> None:
        done = [change for change in changes if change.stage is Stage.DONE]
        assert done, f"no role has changed: {changes}"
        assert all(change.by == by for change in done), f"not by the {by}: {done}"
        assert any((change.before, change.role) == (Role.DECODE, Role.PREFILL) for change in done)

    @fills(Seam.PLANNER_ROLES)
    def test_the_planner_changes_roles_and_hears_of_it(self) -> None:
        """A decode worker becomes a prefill worker."""
        planner = HearingPlanner()
        served = self.run(Scenario(LONG, RecordingRouter(), prefill=1, decode=2, any_role=True, planner=planner))
        assert set(served.endings) == {Ending.FINISHED}
        self._changed(planner.changes, "planner")

    @fills(Seam.ROUTER_ROLES)
    def test_the_router_changes_roles_and_hears_of_it(self) -> None:
        """A decode worker becomes a prefill worker."""
        router = MovingRouter()
        served = self.run(Scenario(LONG, router, prefill=1, decode=2, any_role=True))
        assert set(served.endings) == {Ending.FINISHED}
        self._changed(router.changes, "router")

    @fills(Seam.POWER_ROLES)
    def test_the_power_controller_changes_roles_and_hears_of_it(self) -> None:
        """A decode worker becomes a prefill worker."""
        power = FlippingPower()
        served = self.run(Scenario(LONG, RecordingRouter(), prefill=1, decode=2, any_role=True, power=power))
        assert set(served.endings) == {Ending.FINISHED}
        self._changed(power.changes, "power")

    @fills(Seam.ZERO_OF_A_ROLE)
    def test_a_role_may_have_no_worker_of_its_own(self) -> None:
        """Those of the other one do its phase."""
        for prefill, decode in ((0, 2), (2, 0)):
            served = self.run(Scenario(FEW, RecordingRouter(), prefill=prefill, decode=decode, any_role=True))
            assert served.endings == (Ending.FINISHED,) * len(FEW)
