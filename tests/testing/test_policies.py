"""The conformance classes of policies pass good ones and find bad ones."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from pdplugins.testing import (
    BatchSchedulerConformance,
    FlowConformance,
    PlannerConformance,
    PowerConformance,
    RecordingRouter,
    RouterConformance,
    ScriptedPlanner,
    ScriptSettings,
    deployment,
)
from pdplugins.types import (
    BatchPlan,
    BatchView,
    Ending,
    Flip,
    FlowDecision,
    Go,
    GpuView,
    Hold,
    Outcome,
    Placement,
    PlannerView,
    PowerPlan,
    Refuse,
    Request,
    Role,
    RoleMove,
    ScalePlan,
    Waiting,
    WorkerView,
)


class FirstCome:
    """First come, first served."""

    def __init__(self) -> None:
        self.queue: dict[str, Waiting] = {}

    def on_arrival(self, waiting: Waiting, now_s: float) -> None:
        self.queue[waiting.request.id] = waiting

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        if not self.queue:
            return Hold()
        name = next(iter(self.queue))
        del self.queue[name]
        return Go(name)

    def on_left(self, request_id: str) -> None:
        self.queue.pop(request_id, None)


class Steady:
    """The caps of a share of the budget each."""

    interval_s = 0.5

    def control(self, gpus: tuple[GpuView, ...], view: PlannerView) -> PowerPlan:
        return PowerPlan({gpu.index: 4000.0 / len(gpus) for gpu in gpus})


class WholePrompts:
    """One prompt at a time."""

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        return BatchPlan({task.request.id: task.remaining_tokens for task in view.queue[:1]})

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        pass


class TestScriptedPlanner(PlannerConformance):
    deployment = deployment(gpu_budget=10**9)

    def make(self) -> Any:
        return Careful()


class Careful(ScriptedPlanner):
    """The scripted planner, which looks at its numbers first."""

    def __init__(self) -> None:
        super().__init__(ScriptSettings(per_worker=1e6), deployment())

    def plan(self, view: PlannerView) -> ScalePlan:
        rate = view.traffic.rate if view.traffic else 0.0
        if not 0 <= rate < 1e6:
            return ScalePlan(1, 1, "the rate is no number")
        return super().plan(view)


class TestRecordingRouter(RouterConformance):
    def make(self) -> Any:
        return RecordingRouter()


class TestWholePrompts(BatchSchedulerConformance):
    def make(self) -> Any:
        return WholePrompts()


class TestFirstCome(FlowConformance):
    def make(self) -> Any:
        return FirstCome()


class TestSteady(PowerConformance):
    budget_w = 4800.0

    def make(self) -> Any:
        return Steady()


def plans(answer: Callable[[PlannerView], ScalePlan]) -> Any:
    """A planner that answers with `answer`."""
    return type("Planner", (), {"interval_s": 1.0, "plan": lambda self, view: answer(view)})()


def places(answer: Callable[[Request, tuple[WorkerView, ...]], Placement]) -> Any:
    def place(self: Any, request: Request, workers: tuple[WorkerView, ...], now_s: float) -> Placement:
        return answer(request, workers)

    return type("Router", (), {"on_arrival": place})()


def batches(answer: Callable[[BatchView], BatchPlan]) -> Any:
    def next_batch(self: Any, view: BatchView, now_s: float) -> BatchPlan:
        return answer(view)

    return type("Scheduler", (WholePrompts,), {"next_batch": next_batch})()


def powers(answer: Callable[[tuple[GpuView, ...]], PowerPlan]) -> Any:
    return type("Power", (), {"interval_s": 1.0, "control": lambda self, gpus, view: answer(gpus)})()


def flows(answer: Callable[[FirstCome], FlowDecision]) -> Any:
    return type("Flow", (FirstCome,), {"next": lambda self, workers, now_s: answer(self)})()


BAD: dict[str, tuple[type[Any], Callable[[], Any], str]] = {
    "a planner that divides by the rate": (
        PlannerConformance,
        lambda: plans(lambda view: ScalePlan(1, int(1 / view.traffic.rate), "x")),  # type: ignore[union-attr]
        "AttributeError",
    ),
    "a planner that wants nobody": (PlannerConformance, lambda: plans(lambda _: ScalePlan(0, 1, "x")), "less than 1"),
    "a planner without a reason": (PlannerConformance, lambda: plans(lambda _: ScalePlan(1, 1, "")), "empty"),
    "a router that makes names up": (
        RouterConformance,
        lambda: places(lambda request, _: Placement("x", "x", request.prompt_tokens)),
        "first='x' is none of",
    ),
    "a router that splits inside a token": (
        RouterConformance,
        lambda: places(lambda _, workers: Placement(workers[0].id, workers[0].id, 1.5)),  # type: ignore[arg-type]
        "not a whole number",
    ),
    "a router that gives no text for a reason": (
        RouterConformance,
        lambda: places(lambda _, workers: Placement(workers[0].id, workers[0].id, 1, None)),  # type: ignore[arg-type]
        "is no text",
    ),
    "a scheduler that computes half a token": (
        BatchSchedulerConformance,
        lambda: batches(lambda view: BatchPlan({task.request.id: 0.5 for task in view.queue})),  # type: ignore[misc]
        "not a whole number",
    ),
    "a router that splits before the start": (
        RouterConformance,
        lambda: places(lambda _, workers: Placement(workers[0].id, workers[0].id, -1)),
        "negative",
    ),
    "a scheduler that computes too much": (
        BatchSchedulerConformance,
        lambda: batches(lambda view: BatchPlan({task.request.id: 10**9 for task in view.queue})),
        "remain",
    ),
    "a scheduler that never begins": (
        BatchSchedulerConformance,
        lambda: batches(lambda _: BatchPlan({})),
        "neither runs it nor waits",
    ),
    "a scheduler that waits for ever": (
        BatchSchedulerConformance,
        lambda: batches(lambda _: BatchPlan({}, wait_s=math.inf)),
        "not finite",
    ),
    "a flow policy that lets the same request go again": (
        FlowConformance,
        lambda: flows(lambda flow: Go(next(iter(flow.queue))) if flow.queue else Hold()),
        "does not wait",
    ),
    "a flow policy that refuses without a time": (
        FlowConformance,
        lambda: flows(lambda flow: Refuse(next(iter(flow.queue)), math.nan) if flow.queue else Hold()),
        "not finite",
    ),
    "a power controller that wants no watts": (
        PowerConformance,
        lambda: powers(lambda gpus: PowerPlan({gpu.index: 0.0 for gpu in gpus})),
        "is 0.0 W",
    ),
    "a power controller that leaves a phase without a GPU": (
        PowerConformance,
        lambda: powers(lambda gpus: PowerPlan({}, tuple(Flip(gpu.index, gpus[0].role) for gpu in gpus))),
        "without a GPU",
    ),
    "a power controller that names a GPU of another node": (
        PowerConformance,
        lambda: powers(lambda gpus: PowerPlan({len(gpus): 100.0})),
        "there is no GPU 8",
    ),
}


def subject(base: type[Any], make: Callable[[], Any]) -> Any:
    """An author's test of what `make` makes."""
    return type("Subject", (base,), {"make": lambda self: make()})()


@pytest.mark.parametrize("name", BAD)
def test_bad_answers_are_found_and_the_seed_is_told(name: str) -> None:
    base, make, why = BAD[name]
    with pytest.raises(AssertionError, match=r"^seed \d+: .*" + why):
        subject(base, make).test_it_answers_whatever_the_host_says()


def test_a_policy_that_reads_the_clock_is_found() -> None:
    def by_the_clock(request: Request, workers: tuple[WorkerView, ...]) -> Placement:
        return Placement(workers[0].id, workers[0].id, request.prompt_tokens, str(time.perf_counter_ns()))

    with pytest.raises(AssertionError, match="two equal runs differ"):
        subject(RouterConformance, lambda: places(by_the_clock)).test_it_answers_the_same_when_it_sees_the_same()


def test_a_policy_that_shares_state_with_the_next_one_is_found() -> None:
    count = itertools.count()

    def counted(view: PlannerView) -> ScalePlan:
        return ScalePlan(1, 1, f"call {next(count)}")

    with pytest.raises(AssertionError, match="two equal runs differ"):
        subject(PlannerConformance, lambda: plans(counted)).test_it_answers_the_same_when_it_sees_the_same()


def test_a_planner_that_wavers_without_metrics_is_found() -> None:
    wavering = itertools.cycle([1, 2])
    tests = subject(PlannerConformance, lambda: plans(lambda _: ScalePlan(next(wavering), 1, "x")))
    with pytest.raises(AssertionError):
        tests.test_metrics_that_stay_away_are_no_reason_to_change_for_ever()


def test_a_budget_is_checked_where_the_policy_keeps_it() -> None:
    tests = subject(PlannerConformance, lambda: plans(lambda _: ScalePlan(99, 1, "more")))
    tests.test_it_answers_whatever_the_host_says()
    type(tests).keeps_budget = True
    with pytest.raises(AssertionError, match="100 GPUs exceed the budget of 8"):
        tests.test_it_answers_whatever_the_host_says()
    power = subject(PowerConformance, lambda: powers(lambda gpus: PowerPlan({gpu.index: 700.0 for gpu in gpus})))
    type(power).budget_w = 4800.0
    with pytest.raises(AssertionError, match="caps of 5600 W exceed the budget of 4800 W"):
        power.test_it_answers_whatever_the_host_says()


class StuckAfterOneLeft(FirstCome):
    """Lets nobody go on once a client has left."""

    def on_left(self, request_id: str) -> None:
        self.queue[""] = self.queue.pop(request_id)

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        return Hold(now_s + 1) if "" in self.queue else super().next(workers, now_s)


class ForgetsAllWhenOneLeaves(FirstCome):
    def on_left(self, request_id: str) -> None:
        self.queue.clear()


class SaysNotWhen(FirstCome):
    """Waits for a time, and does not name it."""

    def next(self, workers: tuple[WorkerView, ...], now_s: float) -> FlowDecision:
        return Hold() if now_s < 30 else super().next(workers, now_s)


class RaisesAtBadEndings(FirstCome):
    def on_ended(self, request: Request, outcome: Outcome) -> None:
        if outcome.ending is not Ending.FINISHED:
            raise KeyError(request.id)


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: flows(lambda _: Hold()), AssertionError, "without saying until when"),
        (lambda: flows(lambda _: Hold(1e9)), AssertionError, "wait for ever"),
        (StuckAfterOneLeft, AssertionError, "wait for ever"),
        (ForgetsAllWhenOneLeaves, AssertionError, "without saying until when"),
        (SaysNotWhen, AssertionError, "without saying until when"),
        (RaisesAtBadEndings, KeyError, "1"),
    ],
)
def test_a_flow_policy_that_leaves_requests_waiting_is_found(
    make: Callable[[], Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        subject(FlowConformance, make).test_everybody_gets_an_answer_on_idle_workers()


class LetsEnginesIdle(WholePrompts):
    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        return BatchPlan({}, 1.0)


def test_a_batch_scheduler_that_lets_an_engine_idle_is_found() -> None:
    with pytest.raises(AssertionError, match="has waited for 60 s on an idle engine"):
        subject(BatchSchedulerConformance, LetsEnginesIdle).test_an_idle_engine_runs_what_waits()


class Asks(RecordingRouter):
    """Asks for role moves."""

    moves: Any = ()

    def take_role_moves(self) -> Any:
        return self.moves


@pytest.mark.parametrize(
    ("moves", "why"),
    [
        ((RoleMove("nobody", Role.DECODE),), "'nobody'"),
        ((("w0", "decode"),), "are no RoleMoves"),
        ((RoleMove("w0", "chief"),), "lead to no role"),  # type: ignore[arg-type]
    ],
)
def test_role_moves_that_no_host_follows_are_found(moves: Any, why: str) -> None:
    router = type("Router", (Asks,), {"moves": moves})
    with pytest.raises(AssertionError, match=why):
        subject(RouterConformance, router).test_it_answers_whatever_the_host_says()


class RemembersNaN(ScriptedPlanner):
    def state(self) -> Any:
        return {"rate": math.nan}

    def resume(self, state: Any, age_s: float) -> None:
        pass


def test_a_planner_whose_memory_is_no_json_is_found() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        subject(
            PlannerConformance, lambda: RemembersNaN(ScriptSettings(), deployment())
        ).test_what_it_remembers_is_plain_data()


def test_a_flow_policy_that_remembers_who_left_is_found() -> None:
    class Remembers(FirstCome):
        def on_left(self, request_id: str) -> None:
            pass

    with pytest.raises(AssertionError):
        subject(FlowConformance, Remembers).test_a_request_whose_client_left_is_forgotten()
