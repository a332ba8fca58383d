"""The conformance class of hosts passes a host that fills in everything, and finds what a host does wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar
from unittest import SkipTest

import pytest

from pdplugins.contracts.kinds import Kind
from pdplugins.testing import RecordingRouter, Worker, check_placement, check_scale_plan, deployment, fleet
from pdplugins.testing.hosts import HostConformance, Job, NotFilledError, Scenario, Seam, Served
from pdplugins.types import (
    BatchScheduler,
    BatchView,
    Ending,
    GpuView,
    HearsOutcomes,
    HearsRoles,
    Hold,
    MovesRoles,
    Outcome,
    Planner,
    PlannerView,
    PlansAhead,
    Pool,
    PowerController,
    QueuedPrefill,
    Refuse,
    Request,
    Role,
    RoleChange,
    Stage,
    Traffic,
    Waiting,
)


class SmallHost:
    """Serves one request at a time, at once. `defects` names what it does wrong."""

    def __init__(self, scenario: Scenario, defects: frozenset[str]) -> None:
        self.scenario = scenario
        self.router = scenario.router or RecordingRouter()
        self.defects = defects
        self.workers: tuple[Worker, ...] = fleet(scenario.prefill, scenario.decode)
        self.names = itertools.count()
        self.faults: Counter[Kind] = Counter()
        self.endings: dict[str, Ending] = {}
        self.requests: dict[str, tuple[Request, Job]] = {}
        self.ticks = 0
        self.arrived: list[Job] = []
        self.caps_w: dict[int, float] = {}
        self.batch = None if scenario.batch is None else scenario.batch()
        if "hides tp" in defects:
            self.workers = tuple(Worker(w.id, w.role, w.load, w.kv_capacity_tokens) for w in self.workers)

    def serve(self) -> Served:
        for index, job in enumerate(self.scenario.jobs):
            while self.ticks < job.arrival_s:
                self.tick()
            request = Request(str(index), job.arrival_s, job.prompt_tokens)
            self.requests[request.id] = request, job
            self.arrived.append(job)
            self.arrive(request, job)
        return Served(tuple(self.endings[str(index)] for index in range(len(self.scenario.jobs))), self.faults)

    def arrive(self, request: Request, job: Job) -> None:
        flow, now_s = self.scenario.flow, job.arrival_s
        if flow is None or "does not ask the flow policy" in self.defects:
            return self.place(request, job)
        flow.on_arrival(Waiting(request, now_s, now_s + 2.0), now_s)
        while not isinstance(answer := flow.next(self.workers, now_s), Hold):
            if isinstance(answer, Refuse) and "serves what is refused" not in self.defects:
                self.endings[answer.request_id] = Ending.REFUSED
            else:
                self.place(*self.requests[answer.request_id])
        return None

    def place(self, request: Request, job: Job) -> None:
        if "makes a new tuple each time" in self.defects:
            self.workers = (*self.workers[:-1], self.workers[-1])
        try:
            placement = self.router.on_arrival(request, self.workers, job.arrival_s)
            check_placement(placement, self.workers)
        except Exception:
            if "stops at a bad router" in self.defects:
                raise
            self.faults[Kind.ROUTER] += "does not count faults" not in self.defects
        if isinstance(self.router, MovesRoles):
            for move in self.router.take_role_moves():
                self.change(move.worker, move.role, "router")
        if self.batch is not None:
            self.step(self.batch, request)
        self.end(request, job)

    def step(self, batch: BatchScheduler, request: Request) -> None:
        # As if all that came before were still decoding.
        before = self.scenario.jobs[: len(self.requests) - 1]
        own = () if "hides own TPOTs" in self.defects else tuple(job.tpot_s for job in before if job.tpot_s is not None)
        queue = (QueuedPrefill(request, request.prompt_tokens, request.arrival_s),)
        view = BatchView(queue, len(before), sum(job.prompt_tokens for job in before), own)
        plan = batch.next_batch(view, request.arrival_s)
        if "hides steps" not in self.defects:
            batch.on_step(view, plan, 0.01)

    def end(self, request: Request, job: Job) -> None:
        outcome = Outcome(Ending.FINISHED, job.output_tokens)
        if job.fails:
            outcome = Outcome(Ending.FAILED, 0)
        elif job.leaves_after_s is not None:
            outcome = Outcome(Ending.CANCELLED, 1)
        self.endings[request.id] = outcome.ending
        if "hides load" in self.defects:  # requests go on, and no load shows them
            return
        if "hides failures" in self.defects and outcome.ending is Ending.FAILED:
            return
        for part in (self.router, self.scenario.flow):
            for _ in range(2 if "tells endings twice" in self.defects else 1):
                if isinstance(part, HearsOutcomes):
                    part.on_ended(request, outcome)

    def tick(self) -> None:
        self.ticks += 1
        mean_tokens = sum(job.prompt_tokens for job in self.arrived) / max(len(self.arrived), 1)
        traffic = Traffic(1.0, float(len(self.arrived)), isl_tokens=mean_tokens)
        seen = None if "hides traffic" in self.defects else traffic
        view = PlannerView(float(self.ticks), seen, Pool(self.count(Role.PREFILL)), Pool(self.count(Role.DECODE)))
        self.arrived = []
        if isinstance(self.router, PlansAhead) and "lets no router plan" not in self.defects:
            self.router.plan_ahead(self.workers, view.now_s)
        if self.scenario.planner is not None:
            self.follow(self.scenario.planner, view)
        if self.scenario.power is not None:
            self.control(self.scenario.power, view)

    def follow(self, planner: Planner, view: PlannerView) -> None:
        try:
            plan = planner.plan(view)
            check_scale_plan(plan, deployment(any_role=self.scenario.any_role))
        except Exception:
            self.faults[Kind.PLANNER] += "does not count bad plans" not in self.defects
            return
        if self.scenario.any_role:
            for _ in range(plan.prefill - self.count(Role.PREFILL)):
                self.change(next(w.id for w in self.workers if w.role is Role.DECODE), Role.PREFILL, "planner")
            return
        most = 10**6 if "has no budget" in self.defects else self.scenario.gpu_budget
        decode = min(plan.decode, most - 1)
        for role, count in ((Role.PREFILL, min(plan.prefill, most - decode)), (Role.DECODE, decode)):
            self.resize(role, count)

    def resize(self, role: Role, count: int) -> None:
        if "never stops workers" in self.defects:
            count = max(count, self.count(role))
        mine = [worker for worker in self.workers if worker.role is role]
        others = [worker for worker in self.workers if worker.role is not role]
        new = [Worker(f"new{next(self.names)}", role) for _ in range(count - len(mine))]
        self.workers = (*others, *mine[:count], *new)

    def control(self, power: PowerController, view: PlannerView) -> None:
        caps_w = {} if "sets no caps" in self.defects else self.caps_w
        roles = enumerate(worker.role for worker in self.workers)
        gpus = tuple(GpuView(index, role, 100.0, caps_w.get(index, 700.0)) for index, role in roles)
        plan = power.control(gpus, view)
        self.caps_w.update(plan.caps_w)
        for flip in plan.flips:
            self.change(self.workers[flip.gpu].id, flip.role, "power")

    def count(self, role: Role) -> int:
        return len([worker for worker in self.workers if worker.role is role])

    def change(self, name: str, role: Role, by: str) -> None:
        worker = next(worker for worker in self.workers if worker.id == name)
        change = RoleChange(name, worker.role, role, Stage.DONE, by)
        worker.role = role
        self.workers = (*self.workers[:-1], self.workers[-1])
        for part in (self.scenario.planner, self.router, self.scenario.power):
            if isinstance(part, HearsRoles) and "tells nobody of roles" not in self.defects:
                part.on_role_change(change)


class TestSmallHost(HostConformance):
    defects: ClassVar[frozenset[str]] = frozenset()

    def run(self, scenario: Scenario) -> Served:
        return SmallHost(scenario, self.defects).serve()


DEFECTS = {
    "hides tp": "test_workers_say_their_tensor_parallel_size",
    "hides load": "test_loads_have_what_was_placed_or_say_of_which_time_they_are",
    "makes a new tuple each time": "test_the_same_tuple_is_passed_while_nothing_changes",
    "tells endings twice": "test_the_router_is_told_of_what_finished",
    "hides failures": "test_the_router_is_told_of_what_failed",
    "does not count faults": "test_a_bad_router_does_not_stop_serving_and_is_counted",
    "lets no router plan": "test_a_router_that_plans_ahead_is_called_between_requests",
    "does not ask the flow policy": "test_what_the_flow_policy_holds_waits_and_is_placed_when_it_goes",
    "serves what is refused": "test_what_the_flow_policy_refuses_is_refused",
    "hides steps": "test_the_batch_scheduler_composes_the_steps_and_hears_of_them",
    "hides own TPOTs": "test_the_batch_scheduler_sees_the_tpot_that_decodes_ask_for_themselves",
    "hides traffic": "test_the_planner_sees_the_workers_and_the_traffic",
    "never stops workers": "test_the_pools_follow_the_planner",
    "does not count bad plans": "test_a_bad_planner_changes_no_worker_and_is_counted",
    "has no budget": "test_a_planner_gets_no_more_gpus_than_the_budget",
    "sets no caps": "test_the_power_controller_sets_caps",
    "tells nobody of roles": "test_the_planner_changes_roles_and_hears_of_it",
}


def host(*defects: str, **not_filled: str) -> Any:
    claims = {Seam[name]: reason for name, reason in not_filled.items()}
    return type("Host", (TestSmallHost,), {"defects": frozenset(defects), "not_filled": claims})()


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_by_the_test_of_its_seam(defect: str) -> None:
    with pytest.raises(AssertionError):
        getattr(host(defect), DEFECTS[defect])()


def test_a_host_that_stops_at_a_bad_router_is_found() -> None:
    with pytest.raises(RuntimeError, match="always fails"):
        host("stops at a bad router").test_a_bad_router_does_not_stop_serving_and_is_counted()


def test_a_gap_that_is_declared_is_skipped_and_one_that_is_not_there_fails() -> None:
    with pytest.raises(SkipTest, match="WORKER_TP: it has no GPUs"):
        host("hides tp", WORKER_TP="it has no GPUs").test_workers_say_their_tensor_parallel_size()
    with pytest.raises(AssertionError, match="this host says the tensor-parallel size of each worker, take WORKER_TP"):
        host(WORKER_TP="it has no GPUs").test_workers_say_their_tensor_parallel_size()
    with pytest.raises(AssertionError):
        host(WORKER_TP="").test_what_is_not_filled_has_a_reason()


def test_a_host_may_refuse_a_scenario_only_where_it_says_so() -> None:
    class Without(TestSmallHost):
        not_filled: ClassVar = {Seam.HOLDS: "no flow control"}

        def run(self, scenario: Scenario) -> Served:
            if scenario.flow is not None:
                raise NotFilledError("no flow control")
            return super().run(scenario)

    with pytest.raises(SkipTest, match="HOLDS: no flow control"):
        Without().test_what_the_flow_policy_holds_waits_and_is_placed_when_it_goes()
    with pytest.raises(NotFilledError):
        Without().test_what_the_flow_policy_refuses_is_refused()


def each_test(subject: type) -> list[Callable[[], None]]:
    return [getattr(subject(), name) for name in dir(subject) if name.startswith("test_")]


@pytest.mark.moderate
def test_every_seam_has_a_test() -> None:
    """A host that claims to lack a seam that it has fails in as many tests as the seam has: at least one."""
    for seam in Seam:
        failed = 0
        for test in each_test(type(host(**{seam.name: "claimed"}))):
            with suppress(AssertionError):
                test()
                continue
            failed += 1
        assert failed >= 1, seam
