"""What every policy promises whatever a host says, as test classes: subclass the one of the kind, and say `make`.

    class TestQueueStep(PlannerConformance):
        def make(self) -> Planner:
            return QueueStepPlanner(QueueStepSettings(), self.deployment)

Each shows the policy random observations: NaN, None, negative and infinite numbers, workers that come and go, a clock
that stands still. The policy must not raise, must answer validly, and must answer the same when it sees the same.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from pdplugins.contracts.batching import BatchPlan, BatchScheduler, BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Flow, FlowDecision, Go, Hold, Waiting
from pdplugins.contracts.planner import Eager, Planner, Remembers, ScalePlan
from pdplugins.contracts.power import PowerController, PowerPlan
from pdplugins.contracts.roles import MovesRoles
from pdplugins.contracts.router import Ending, HearsOutcomes, Outcome, Placement, PlansAhead, Router
from pdplugins.contracts.workers import WorkerView
from pdplugins.testing import checks
from pdplugins.testing.observations import Observations
from pdplugins.testing.views import deployment, fleet, planner_view

MOST_IDLE_S = 60.0
"""Seconds that a policy may let requests wait while nothing runs."""
P = TypeVar("P")


class PolicyConformance(Generic[P]):
    """What is the same for all kinds. Subclass the class of a kind, not this one."""

    seeds: ClassVar[Iterable[int]] = range(20)
    """Each gives a run of observations of its own."""
    calls: ClassVar[int] = 12
    """Calls of a run."""
    deployment: ClassVar[Deployment] = deployment()
    """What the policy is built for. Replace it where that needs a real profile."""

    @abstractmethod
    def make(self) -> P:
        """Return a new policy."""
        raise NotImplementedError

    def drive(self, policy: P, seed: int) -> list[Any]:
        """Show the policy the observations of `seed`, check each answer, and return all of them."""
        raise NotImplementedError

    def test_it_answers_whatever_the_host_says(self) -> None:
        """It never raises, and every answer is valid."""
        for seed in self.seeds:
            try:
                self.drive(self.make(), seed)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error

    def test_it_answers_the_same_when_it_sees_the_same(self) -> None:
        """No clock, no randomness of its own, nothing shared between two policies."""
        for seed in self.seeds:
            first, second = self.drive(self.make(), seed), self.drive(self.make(), seed)
            assert repr(first) == repr(second), f"seed {seed}: two equal runs differ"


class PlannerConformance(PolicyConformance[Planner]):
    """Of planners."""

    keeps_budget: ClassVar[bool] = False
    """Whether the planner keeps the GPU budget itself. It need not: the host cuts what is too large."""

    def drive(self, policy: Planner, seed: int) -> list[ScalePlan]:
        """Plan on a host that says anything."""
        host, now_s, plans = Observations(seed), 0.0, []
        for _ in range(self.calls):
            view = host.planner_view(now_s)
            plan = policy.plan(view)
            checks.check_scale_plan(plan, self.deployment, within_budget=self.keeps_budget)
            if isinstance(policy, Eager):
                wait_s = policy.wait_s(view)
                assert wait_s is None or 0 <= wait_s < float("inf"), f"wait_s={wait_s!r} is no time"
            plans.append(plan)
            now_s += host.later_s(policy.interval_s)
        return plans

    def test_its_interval_is_a_time(self) -> None:
        """A host divides by it and waits for it."""
        assert 0 < self.make().interval_s < float("inf")

    def test_metrics_that_stay_away_are_no_reason_to_change_for_ever(self) -> None:
        """Its plan stops changing once the host reports nothing."""
        policy = self.make()
        for tick in range(20):
            policy.plan(planner_view(tick * policy.interval_s, 5.0))
        plans = [policy.plan(planner_view((20 + tick) * policy.interval_s, None)) for tick in range(200)]
        assert {(plan.prefill, plan.decode) for plan in plans[-20:]} == {(plans[-1].prefill, plans[-1].decode)}

    def test_what_it_remembers_is_plain_data(self) -> None:
        """A planner that remembers goes on from what JSON has kept. So it does where it saw anything."""
        if not isinstance(self.make(), Remembers):
            return
        for seed in self.seeds:
            policy, fresh = self.make(), self.make()
            self.drive(policy, seed)
            assert isinstance(policy, Remembers)
            assert isinstance(fresh, Remembers)
            fresh.resume(json.loads(json.dumps(policy.state(), allow_nan=False)), 0.0)
            checks.check_scale_plan(fresh.plan(planner_view(0.0, 5.0)), self.deployment)


class RouterConformance(PolicyConformance[Router]):
    """Of routers."""

    def drive(self, policy: Router, seed: int) -> list[Placement]:
        """Place requests; let some end soon, some late, some badly."""
        host, now_s, placements = Observations(seed), 0.0, []
        workers: tuple[WorkerView, ...] = ()
        running = []
        for index in range(self.calls):
            seen, workers, request = workers, host.workers(), host.request(str(index), now_s)
            placement = policy.on_arrival(request, workers, now_s)
            checks.check_placement(placement, workers)
            if placement.second is None:
                workers = host.workers()
                first = placement.first
                placement = policy.on_prefill_done(request, placement, workers, now_s)
                checks.check_placement(replace(placement, first=placement.second or ""), workers, complete=True)
                assert placement.first == first, "the first worker changed while it computed"
            placements.append(placement)
            running.append(request)
            if isinstance(policy, PlansAhead) and index % 3 == 2:
                policy.plan_ahead(workers, now_s)
            if isinstance(policy, MovesRoles):
                checks.check_role_moves(policy.take_role_moves(), [*seen, *workers])
            if isinstance(policy, HearsOutcomes) and index % 2:
                ended = running.pop(0)
                policy.on_ended(ended, Outcome(list(Ending)[index % 3], index))
            now_s += host.later_s(0.1)
        return placements


class BatchSchedulerConformance(PolicyConformance[BatchScheduler]):
    """Of batch schedulers."""

    def drive(self, policy: BatchScheduler, seed: int) -> list[BatchPlan]:
        """Compose steps whose times are anything."""
        host, now_s, plans = Observations(seed), 10.0, []
        for _ in range(self.calls):
            view = host.batch_view()
            plan = policy.next_batch(view, now_s)
            checks.check_batch_plan(plan, view)
            policy.on_step(view, plan, host.number(10))
            plans.append(plan)
            now_s += host.later_s(0.1)
        return plans

    def test_an_idle_engine_runs_what_waits(self) -> None:
        """A prompt runs within a minute where nothing else does: hosts overrule a policy that lets an engine idle."""
        host, policy = Observations(0), self.make()
        request = replace(host.request("a", 0.0), prompt_tokens=100)
        view, now_s = BatchView((QueuedPrefill(request, 100, 0.0),), 0, 0), 0.0
        while not (plan := policy.next_batch(view, now_s)).prefill_tokens:
            assert now_s < MOST_IDLE_S, f"a prompt has waited for {now_s:g} s on an idle engine"
            now_s += max(plan.wait_s, 0.1)


class FlowConformance(PolicyConformance[Flow]):
    """Of flow policies."""

    def drive(self, policy: Flow, seed: int) -> list[FlowDecision]:
        """Let requests come and go, and ask until the policy holds."""
        host, now_s, decisions = Observations(seed), 0.0, []
        waiting: list[str] = []
        for index in range(self.calls):
            request = host.request(str(index), now_s)
            policy.on_arrival(Waiting(request, now_s, now_s + 2.0), now_s)
            waiting.append(request.id)
            if index % 4 == 3:
                policy.on_left(waiting.pop(0))
            decisions += self._ask(policy, host, waiting, now_s) if index % 3 else []
            now_s += host.later_s(0.1)
        return decisions

    @staticmethod
    def _ask(policy: Flow, host: Observations, waiting: list[str], now_s: float) -> list[FlowDecision]:
        workers, decisions = host.workers(), []
        for _ in range(len(waiting) + 1):
            decision = policy.next(workers, now_s)
            checks.check_flow_decision(decision, waiting, now_s)
            decisions.append(decision)
            if isinstance(decision, Hold):
                return decisions
            waiting.remove(decision.request_id)
        raise AssertionError("nothing waits any more, and the policy does not hold")

    def test_everybody_gets_an_answer_on_idle_workers(self) -> None:
        """Requests go on or are refused within a minute where nothing else runs: no request may wait forever.

        One client leaves first, and requests end in every way. While something waits and nothing is in service, only
        the time can change what a policy says: so it must name one. Hosts do not ask before.
        """
        host, policy, now_s = Observations(0), self.make(), 0.0
        workers = fleet(2, 2)
        requests = {str(index): replace(host.request(str(index), 0.0), prompt_tokens=100) for index in range(20)}
        for request in requests.values():
            policy.on_arrival(Waiting(request, 0.0, 2.0), 0.0)
        policy.on_left("0")
        waiting = requests.keys() - {"0"}
        while waiting:
            assert now_s < MOST_IDLE_S, f"{sorted(waiting)} wait for ever"
            placed = []
            while not isinstance(decision := policy.next(workers, now_s), Hold):
                checks.check_flow_decision(decision, waiting, now_s)
                waiting.remove(decision.request_id)
                placed += [decision.request_id] if isinstance(decision, Go) else []
            if isinstance(policy, HearsOutcomes):
                for name in placed:
                    policy.on_ended(requests[name], Outcome(list(Ending)[int(name) % 3], 10))
            if waiting and not placed:
                held = f"{len(waiting)} requests wait, nothing is in service, and it holds"
                assert decision.until_s is not None, f"{held} without saying until when"
                now_s = max(decision.until_s, now_s + 1e-3)

    def test_a_request_whose_client_left_is_forgotten(self) -> None:
        """`on_left` takes it out of the queue."""
        host, policy = Observations(0), self.make()
        for name in ("a", "b"):
            policy.on_arrival(Waiting(replace(host.request(name, 0.0), prompt_tokens=100), 0.0, 2.0), 0.0)
        policy.on_left("a")
        workers, gone = fleet(1, 1), set()
        while isinstance(decision := policy.next(workers, 0.0), Go):
            gone.add(decision.request_id)
        assert "a" not in gone


class PowerConformance(PolicyConformance[PowerController]):
    """Of power controllers. The GPUs take whatever caps and roles the controller wants at once."""

    budget_w: ClassVar[float | None] = None
    """Watts that all caps may sum to; None where the controller has no budget of its own."""

    def drive(self, policy: PowerController, seed: int) -> list[PowerPlan]:
        """Control a node whose metrics are anything."""
        host, now_s, plans = Observations(seed), 0.0, []
        gpus = host.gpus(self.deployment.gpu_budget)
        for _ in range(self.calls):
            plan = policy.control(gpus, host.planner_view(now_s))
            checks.check_power_plan(plan, gpus, budget_w=self.budget_w)
            flips = {flip.gpu: flip.role for flip in plan.flips}
            gpus = tuple(
                replace(
                    gpu,
                    role=flips.get(gpu.index, gpu.role),
                    cap_w=plan.caps_w.get(gpu.index, gpu.cap_w),
                    draw_w=host.number(700),
                )
                for gpu in gpus
            )
            plans.append(plan)
            now_s += host.later_s(policy.interval_s)
        return plans

    def test_its_interval_is_a_time(self) -> None:
        """A host divides by it and waits for it."""
        assert 0 < self.make().interval_s < float("inf")
