"""What a host promises to policies that see each request: routers, flow policies and batch schedulers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, Outcome
from pdplugins.contracts.workers import Role
from pdplugins.testing.host_policies import (
    CountingRouter,
    EverySecond,
    LoggingRouter,
    OneByOne,
    PlanningRouter,
    RaisingRouter,
    SilentRouter,
    UnknownRouter,
    WholePrompts,
)
from pdplugins.testing.scenario import HostTests, Job, Scenario, Seam, Served, fills
from pdplugins.testing.scripted import RecordingRouter

FEW = tuple(Job(0.05 * index, 100 + index, 5 + index) for index in range(6))


class RequestTests(HostTests):
    """Each test is that of one seam."""

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
        names = "decode_requests", "decode_tokens", "prefill_tokens", "prefill_history_tokens"
        told = [tuple(getattr(load, name) for name in names) for load in loads]
        assert not [one for one in told if None in one]

    @fills(Seam.PLACED_LOADS)
    def test_loads_have_what_was_placed_or_say_of_which_time_they_are(self) -> None:
        """Else a router gives all requests to the worker that was the least loaded when it was asked."""
        router = CountingRouter()
        self.run(Scenario((Job(output_tokens=200),) * 4, router))
        assert not router.hidden

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

    @fills(Seam.PLANS_AHEAD)
    def test_a_router_that_plans_ahead_is_called_between_requests(self) -> None:
        """About once a second, with the workers that it would be asked about."""
        router = PlanningRouter()
        served = self.run(Scenario((FEW[0], Job(14.0)), router, prefill=1, decode=2))
        assert served.endings == (Ending.FINISHED,) * 2
        assert 3 in router.planned, "on all workers"

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
        half = len(FEW) // 2  # which ones: a live host may see requests that come close together in another order
        assert Counter(served.endings) == {Ending.FINISHED: half, Ending.REFUSED: half}
        assert len(router.asked) == len(FEW) // 2

    @fills(Seam.ZERO_OF_A_ROLE)
    def test_a_role_may_have_no_worker_of_its_own(self) -> None:
        """Those of the other one do its phase."""
        for prefill, decode in ((0, 2), (2, 0)):
            router = RecordingRouter()
            served = self.run(Scenario(FEW, router, prefill=prefill, decode=decode, any_role=True))
            assert served.endings == (Ending.FINISHED,) * len(FEW)
            roles = Counter(worker.role for worker in router.asked[0].looked)
            assert (roles[Role.PREFILL], roles[Role.DECODE]) == (prefill, decode)

    # --- batches -----------------------------------------------------------------------------------------------------

    @fills(Seam.BATCHES)
    def test_the_batch_scheduler_composes_the_steps_and_hears_of_them(self) -> None:
        """Every prompt is prefilled as the scheduler of its worker says."""
        made: list[WholePrompts] = []

        def make() -> WholePrompts:
            made.append(WholePrompts())
            return made[-1]

        served = self.run(Scenario(FEW, batch=make, prefill=1, decode=1))
        assert served.endings == (Ending.FINISHED,) * len(FEW)
        planned = Counter(tokens for scheduler in made for plan in scheduler.plans for tokens in plan.values())
        assert planned == Counter(job.prompt_tokens for job in FEW)
        assert sum(len(scheduler.stepped) for scheduler in made) >= len(FEW)

    @fills(Seam.OWN_TPOTS)
    def test_the_batch_scheduler_sees_the_tpot_that_decodes_ask_for_themselves(self) -> None:
        """One worker does all of it: while the first request decodes, the others prefill."""
        made: list[WholePrompts] = []

        def make() -> WholePrompts:
            made.append(WholePrompts())
            return made[-1]

        strict, *others = (replace(job, output_tokens=100) for job in FEW)
        jobs = (replace(strict, tpot_s=0.03), *others)
        served = self.run(Scenario(jobs, batch=make, prefill=0, decode=1, any_role=True))
        assert served.endings == (Ending.FINISHED,) * len(FEW)
        assert {own for scheduler in made for own in scheduler.own_tpots} == {(), (0.03,)}
