"""Whatever a policy or a host does, the safe planner answers with a plan that is safe to follow."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.decision import Fault
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.faults import LOG_EVERY, MOST_TEXT
from pdplugins.runtime.journal import StandardJournal
from pdplugins.runtime.metrics import MOST_NAME, MOST_SIGNALS, Metrics
from pdplugins.runtime.planner import SHORTEST_WAIT_S, SafePlanner, build_safe_planner, fit_budget
from pdplugins.types import Deployment, PlannerView, Pool, ScalePlan, Slo, Traffic, WorkerLoad
from tests.runtime.hostile import Script, errors, junk, numbers

START = ScalePlan(2, 1, "start")
See = Callable[..., PlannerView]


class Answers:
    """A policy that gives the next of a list of answers, raising those that are exceptions."""

    interval_s = 5.0

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def plan(self, view: PlannerView) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def machine(gpu_budget: int, prefill_tp: int, decode_tp: int) -> Deployment:
    """A deployment without a performance model: the guard looks at GPUs only."""
    perf: Any = None
    return Deployment(Slo(2.0, 0.08), perf, gpu_budget, prefill_tp, decode_tp, startup_s=30.0, max_batch=256)


def safe(deployment: Deployment, *answers: object, **options: Any) -> SafePlanner:
    return SafePlanner(Answers(*answers), deployment, initial=START, **options)


def test_a_good_plan_passes_unchanged(deployment: Deployment, see: See) -> None:
    plan = ScalePlan(3, 2, "more load", {"forecast_rate": 2.0})
    decision = safe(deployment, plan).decide(see(0))
    assert (decision.answer, decision.fault) == (plan, None)


def test_a_policy_that_raises_leaves_the_last_good_plan(deployment: Deployment, see: See) -> None:
    planner = safe(deployment, ScalePlan(3, 2, "up"), ValueError("bad\nfit"))
    planner.plan(see(0))
    decision = planner.decide(see(5))
    assert (decision.answer.prefill, decision.answer.decode, decision.fault) == (3, 2, Fault.POLICY_ERROR)
    assert decision.answer.reason == "hold, policy_error: Answers raised ValueError: bad fit"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ScalePlan(0, 1, ""), "prefill is 0; at least one worker of each role must stay"),
        (ScalePlan(1, -3, ""), "decode is -3; at least one"),
        (ScalePlan(math.nan, 1, ""), "prefill is nan, not a whole number"),  # type: ignore[arg-type]
        (ScalePlan(True, 1, ""), "prefill is True"),
        (ScalePlan(2.0, 1, ""), "prefill is 2.0, not a whole number"),  # type: ignore[arg-type]
        (ScalePlan(None, 1, ""), "prefill is None, not a whole number"),  # type: ignore[arg-type]
        (ScalePlan(1, 1, "", {"rate": "fast"}), "could not convert"),  # type: ignore[dict-item]
        ((3, 2), "the policy answered with tuple, not ScalePlan"),
        (None, "the policy answered with NoneType, not ScalePlan"),
    ],
)
def test_an_unsafe_answer_leaves_the_last_good_plan(deployment: Deployment, see: See, answer: object, why: str) -> None:
    decision = safe(deployment, answer).decide(see(0))
    assert (decision.answer.prefill, decision.answer.decode, decision.fault) == (2, 1, Fault.UNSAFE_ANSWER)
    assert why in decision.answer.reason


HOSTILE = "\x1b[2J\ud800 " + "x" * 10**6
"""What clears a screen, cannot be encoded, and fills a disk."""


def test_what_a_planner_says_is_cleaned_and_bounded(deployment: Deployment, see: See) -> None:
    signals = {HOSTILE: 1.0, "rate": 2.0, "nan": math.nan, "inf": math.inf, **{f"s{n}": 0.0 for n in range(10**4)}}
    plan = safe(deployment, ScalePlan(3, 2, HOSTILE, signals)).decide(see(0)).answer
    assert (plan.prefill, plan.decode, plan.reason) == (3, 2, f"?[2J? {'x' * (MOST_TEXT - 7)}…")
    assert list(plan.signals)[:3] == [f"?[2J? {'x' * (MOST_NAME - 7)}…", "rate", "s0"]
    assert len(plan.signals) <= MOST_SIGNALS


@pytest.mark.parametrize("answer", [ValueError(HOSTILE), ScalePlan(HOSTILE, 1, ""), ScalePlan(10**4000, 1, "")])  # type: ignore[arg-type]
def test_what_is_wrong_is_said_in_one_short_line(
    deployment: Deployment, see: See, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    decision = safe(deployment, answer).decide(see(0))
    for said in (decision.answer.reason, *caplog.messages):
        assert said.isprintable()
        assert len(said) <= 2 * MOST_TEXT
    assert decision.fault is not None


def test_its_traceback_has_that_line_too(deployment: Deployment, see: See, caplog: pytest.LogCaptureFixture) -> None:
    within = ExceptionGroup("many", [ValueError("x" * 10**5)] * 20)
    for error, said in ((ValueError(HOSTILE), "raised ValueError: ?[2J"), (within, "raised ExceptionGroup: many")):
        caplog.clear()
        safe(deployment, error).decide(see(0))
        assert "in plan" in caplog.text
        assert f"PluginError: Answers {said}" in caplog.text
        assert len(caplog.text) < 10_000
        assert caplog.text.replace("\n", "").isprintable()


def test_a_traceback_is_shown_whole_where_it_is_short(
    deployment: Deployment, see: See, caplog: pytest.LogCaptureFixture
) -> None:
    safe(deployment, ValueError("one\nother")).decide(see(0))
    assert "ValueError: one\nother" in caplog.text


def test_so_is_why_a_door_cannot_read_its_host(
    deployment: Deployment, see: See, caplog: pytest.LogCaptureFixture
) -> None:
    assert safe(deployment).hold(HOSTILE).answer.reason.isprintable()
    assert all(said.isprintable() and len(said) < 2 * MOST_TEXT for said in caplog.messages)


def test_numpy_counts_are_whole_numbers(deployment: Deployment, see: See) -> None:
    plan = safe(deployment, ScalePlan(np.int64(3), np.int32(2), "numpy")).plan(see(0))  # type: ignore[arg-type]
    assert (type(plan.prefill), plan.prefill, plan.decode) == (int, 3, 2)


def test_a_plan_over_the_budget_is_cut_to_fit_and_counted(deployment: Deployment, see: See) -> None:
    planner = safe(deployment, ScalePlan(100, 100, "burst"))
    decision = planner.decide(see(0))
    assert (decision.answer.prefill, decision.answer.decode, decision.fault) == (4, 2, Fault.OVER_BUDGET)
    assert decision.answer.reason == "burst; 100P100D needs 300 GPUs, cut to the budget of 8"
    assert planner.faults[Fault.OVER_BUDGET] == 1


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(0, 200),
)
def test_the_cut_keeps_both_roles_stays_inside_and_wastes_no_worker(
    prefill: int, decode: int, prefill_tp: int, decode_tp: int, spare: int
) -> None:
    budget = prefill_tp + decode_tp + spare
    deployment = machine(budget, prefill_tp, decode_tp)
    plan = fit_budget(ScalePlan(prefill, decode, ""), deployment)
    assert 1 <= plan.prefill <= prefill
    assert 1 <= plan.decode <= decode
    used = deployment.gpus(plan.prefill, plan.decode)
    assert used <= budget
    if (plan.prefill, plan.decode) != (prefill, decode):
        assert used > budget - prefill_tp - decode_tp


def test_where_one_worker_of_each_role_does_not_fit_one_that_does_both_stays() -> None:
    small = replace(machine(4, 4, 4), any_role=True)
    plan = fit_budget(ScalePlan(1, 1, "both"), small)
    assert (plan.prefill, plan.decode) == (0, 1)
    with pytest.raises(ValueError, match="into 4 GPUs"):
        fit_budget(ScalePlan(1, 1, "both"), machine(4, 4, 4))
    with pytest.raises(ValueError, match="into 3 GPUs"):
        fit_budget(ScalePlan(1, 1, "both"), replace(machine(3, 4, 4), any_role=True))


@pytest.mark.parametrize("field", ["window_s", "requests", "isl_tokens", "osl_tokens", "ttft_s", "tpot_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "7"])
def test_traffic_that_is_not_numbers_holds_and_names_the_field(deployment: Deployment, field: str, value: Any) -> None:
    view = PlannerView(0.0, replace(Traffic(5.0, 5.0), **{field: value}), Pool(1), Pool(1))
    planner = safe(deployment)  # asking the policy would raise IndexError
    decision = planner.decide(view)
    assert decision.fault is Fault.BAD_METRICS
    assert f"traffic.{field} is {value}" in decision.answer.reason


@pytest.mark.parametrize("name", [field.name for field in fields(WorkerLoad) if field.name != "worker"])
def test_a_load_that_is_not_a_number_holds(deployment: Deployment, name: str) -> None:
    pool = Pool(1, loads=(replace(WorkerLoad("w7"), **{name: math.nan}),))
    decision = safe(deployment).decide(PlannerView(0.0, Traffic(5.0, 5.0), pool, Pool(1)))
    assert f"prefill worker w7 {name} is nan" in decision.answer.reason


@pytest.mark.parametrize("ready", [None, "7", 10**400], ids=["nothing", "a text", "a huge number"])
def test_workers_that_cannot_be_counted_hold_and_leave_the_metrics_a_page(deployment: Deployment, ready: Any) -> None:
    registry = CollectorRegistry()
    planner = safe(deployment, journal=StandardJournal(metrics=[Metrics(Kind.PLANNER, registry)]))
    decision = planner.decide(PlannerView(0.0, None, Pool(ready), Pool(3)))
    assert decision.fault is Fault.BAD_METRICS
    assert decision.answer.reason.startswith("hold, bad_metrics: prefill.ready is ")
    assert b'pdplugins_planner_ready_replicas{role="decode"} 3.0' in generate_latest(registry)


def test_an_empty_window_is_not_idleness(deployment: Deployment) -> None:
    decision = safe(deployment).decide(PlannerView(0.0, Traffic(0.0, 0.0), Pool(1), Pool(1)))
    assert decision.fault is Fault.BAD_METRICS


def test_a_clock_that_stands_still_holds_until_it_goes_on(deployment: Deployment, see: See) -> None:
    planner = safe(deployment, ScalePlan(3, 1, "a"), ScalePlan(4, 1, "b"))
    planner.plan(see(10))
    assert planner.decide(see(10)).fault is Fault.STALE_METRICS
    assert planner.decide(see(4)).fault is Fault.STALE_METRICS
    assert planner.decide(see(9)).answer == ScalePlan(4, 1, "b")


def test_missing_traffic_is_the_policys_business_for_three_intervals_then_holds(
    deployment: Deployment, see: See
) -> None:
    planner = safe(deployment, *[ScalePlan(3, 1, "mine")] * 5)
    planner.plan(see(0))
    faults = [planner.decide(see(now_s, None)).fault for now_s in (5, 10, 15, 20)]
    assert faults == [None, None, None, Fault.STALE_METRICS]
    assert planner.decide(see(25)).fault is None


def test_a_door_that_cannot_read_its_host_holds(deployment: Deployment, see: See) -> None:
    planner = safe(deployment, ScalePlan(3, 1, "a"))
    planner.plan(see(0))
    decision = planner.hold("KeyError: 'isl'", KeyError("isl"))
    assert (decision.answer.prefill, decision.fault) == (3, Fault.OBSERVATION)


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(-3, 10**9)), min_size=1, max_size=8))
def test_it_never_raises_and_never_answers_unsafely(counts: list[Any]) -> None:
    deployment = machine(8, 1, 2)
    planner = safe(deployment, *[ScalePlan(n, n, "x") for n in counts])
    for tick, count in enumerate(counts):
        traffic = Traffic(5.0, float(count)) if isinstance(count, float) else None
        plan = planner.plan(PlannerView(float(tick), traffic, Pool(1), Pool(1)))
        assert plan.prefill >= 1
        assert plan.decode >= 1
        assert deployment.gpus(plan.prefill, plan.decode) <= 8


counts = st.integers(-3, 10**9) | st.booleans() | junk
scale_plans = st.builds(ScalePlan, counts, counts, st.text() | junk, st.dictionaries(st.text(), numbers | junk) | junk)


@given(script=st.lists(scale_plans | errors | junk, min_size=1, max_size=8), any_role=st.booleans())
def test_any_answer_becomes_one_to_follow(script: list[Any], any_role: bool) -> None:
    deployment = replace(machine(8, 1, 2), any_role=any_role)
    planner = SafePlanner(Script(script), deployment, initial=START)  # type: ignore[arg-type]
    for tick in range(len(script)):
        decision = planner.decide(PlannerView(float(tick), None, Pool(1), Pool(1)))
        plan = decision.answer
        assert type(plan.prefill) is type(plan.decode) is int
        assert min(plan.prefill, plan.decode) >= (0 if any_role else 1)
        assert plan.prefill + plan.decode >= 1
        assert deployment.gpus(plan.prefill, plan.decode) <= 8
        assert type(plan.reason) is str
        assert plan.reason.isprintable()
        assert len(plan.reason) <= 2 * MOST_TEXT
        assert all(type(value) is float and math.isfinite(value) for value in plan.signals.values())
        assert all(name.isprintable() for name in plan.signals)


@pytest.mark.parametrize(("prefill", "decode"), [(0, 2), (3, 0)])
def test_a_role_may_have_no_worker_where_the_others_do_both_phases(see: See, prefill: int, decode: int) -> None:
    plan = ScalePlan(prefill, decode, "one pool")
    assert safe(replace(machine(8, 1, 2), any_role=True), plan).decide(see(0)).answer == plan
    assert safe(machine(8, 1, 2), plan).decide(see(0)).fault is Fault.UNSAFE_ANSWER


def test_somebody_must_stay_even_there(see: See) -> None:
    decision = safe(replace(machine(8, 1, 2), any_role=True), ScalePlan(0, 0, "none")).decide(see(0))
    assert (decision.answer.prefill, decision.answer.decode, decision.fault) == (2, 1, Fault.UNSAFE_ANSWER)


@pytest.mark.parametrize(("plan", "fits"), [((0, 9), (0, 4)), ((9, 0), (8, 0))])
def test_one_pool_is_cut_to_the_budget_too(see: See, plan: tuple[int, int], fits: tuple[int, int]) -> None:
    decision = safe(replace(machine(8, 1, 2), any_role=True), ScalePlan(*plan, "burst")).decide(see(0))
    assert (decision.answer.prefill, decision.answer.decode, decision.fault) == (*fits, Fault.OVER_BUDGET)


def test_a_pool_of_which_no_worker_fits_holds(see: See) -> None:
    planner = safe(replace(machine(2, 1, 4), any_role=True), ScalePlan(2, 0, "fits"), ScalePlan(0, 1, "big"))
    planner.plan(see(0))
    decision = planner.decide(see(5))
    assert (decision.answer.prefill, decision.answer.decode, decision.fault) == (2, 0, Fault.UNSAFE_ANSWER)


def test_a_journal_hears_what_was_seen_and_what_held_before(deployment: Deployment, see: See) -> None:
    class Notes:
        def __init__(self) -> None:
            self.decisions: list[Any] = []
            self.faults: list[Any] = []

        def decided(self, decision: Any, seen: Any) -> None:
            self.decisions.append((decision, seen))

        def fault(self, kind: Any, fault: Any, why: str, error: Any = None) -> None:
            self.faults.append((kind, fault, why))

    journal = Notes()
    planner = safe(deployment, ScalePlan(3, 1, "a"), RuntimeError("no"), journal=journal)
    first, second = planner.decide(see(0)), planner.decide(see(5))
    assert journal.decisions == [
        (first, {"view": see(0), "before": START}),
        (second, {"view": see(5), "before": first.answer}),
    ]
    assert journal.faults == [(Kind.PLANNER, Fault.POLICY_ERROR, "Answers raised RuntimeError: no")]


def test_a_fault_is_logged_once_and_then_every_hundredth_time(
    deployment: Deployment, see: See, caplog: pytest.LogCaptureFixture
) -> None:
    planner = safe(deployment, *[RuntimeError("no")] * (LOG_EVERY + 10))
    with caplog.at_level(logging.WARNING, "pdplugins.planner"):
        for tick in range(LOG_EVERY + 10):
            planner.plan(see(tick))
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "policy_error (1 so far)",
        f"policy_error ({LOG_EVERY} so far)",
    ]


def test_the_metrics_tell_what_happened(deployment: Deployment, see: See) -> None:
    registry = CollectorRegistry()
    planner = safe(
        deployment,
        ScalePlan(4, 1, "up", {"forecast_rate": 7.5}),
        ScalePlan(3, 1, "down"),
        RuntimeError("no"),
        journal=StandardJournal(metrics=[Metrics(Kind.PLANNER, registry)]),
        clock=iter(range(0, 10**11, 10**9)).__next__,
    )
    for tick in range(3):
        planner.plan(see(tick))

    def value(name: str, /, **labels: str) -> float | None:
        return registry.get_sample_value("pdplugins_planner_" + name, labels)

    assert value("signal", name="forecast_rate") == 7.5
    assert value("target_replicas", role="prefill") == 3
    assert value("ready_replicas", role="decode") == 1
    kinds = ("scale_up", "scale_down", "hold")
    assert [value("decisions_total", role="prefill", kind=kind) for kind in kinds] == [1, 1, 1]
    assert value("decisions_total", role="decode", kind="hold") == 3
    assert value("errors_total", kind="policy_error") == 1
    assert value("step_seconds_count") == 3
    assert value("step_seconds_sum") == 3.0


def test_a_config_becomes_a_safe_planner_that_starts_from_its_pools(config: Any) -> None:
    planner = build_safe_planner(config)
    assert (planner.last.prefill, planner.last.decode, planner.interval_s, planner.decided) == (1, 1, 5.0, False)


def test_its_log_holds_the_planners_defaults_too(config: Any, tmp_path: Path) -> None:
    build_safe_planner(config, decision_log=tmp_path / "d").close()
    (run,) = read(tmp_path / "d")
    assert run.header["config"]["planner"] == {"name": "scripted", "per_worker": 10, "interval_s": 5, "fail_at": -1}


class Waits(Answers):
    """A policy that is eager: it gives the next of a list of waits too."""

    def __init__(self, *waits: object) -> None:
        super().__init__()
        self.waits = list(waits)

    def wait_s(self, view: PlannerView) -> Any:
        wait_s = self.waits.pop(0)
        if isinstance(wait_s, BaseException):
            raise wait_s
        return wait_s


def test_an_eager_planner_says_when_to_look_again(deployment: Deployment, see: See) -> None:
    planner = SafePlanner(Waits(0.0, 2, None, 0.001), deployment, initial=START)
    assert planner.eager
    assert [planner.wait_s(see(at)) for at in range(4)] == [0.0, 2.0, math.inf, SHORTEST_WAIT_S]
    assert not planner.faults
    assert safe(deployment).wait_s(see(0)) == math.inf
    assert not safe(deployment).eager


@pytest.mark.parametrize(
    ("wait_s", "fault"),
    [(ValueError("no"), Fault.POLICY_ERROR), ("soon", Fault.POLICY_ERROR)]
    + [(bad, Fault.UNSAFE_ANSWER) for bad in (-1.0, math.nan)],
)
def test_a_planner_that_says_nonsense_waits_for_its_interval(
    deployment: Deployment, see: See, wait_s: object, fault: Fault
) -> None:
    planner = SafePlanner(Waits(wait_s), deployment, initial=START)
    assert planner.wait_s(see(0)) == math.inf
    assert planner.faults[fault] == 1


def test_a_planner_is_not_asked_twice_at_the_same_time(deployment: Deployment, see: See) -> None:
    """One that always wants to be asked would keep its host busy for ever."""
    policy = Waits(0, 0)
    policy.answers = [ScalePlan(1, 1, "")]
    planner = SafePlanner(policy, deployment, initial=START)
    planner.plan(see(5))
    assert planner.wait_s(see(5)) == SHORTEST_WAIT_S
    assert planner.wait_s(see(6)) == 0.0


def test_metrics_that_are_no_numbers_are_not_shown_to_an_eager_planner(deployment: Deployment, see: See) -> None:
    planner = SafePlanner(Waits(), deployment, initial=START)
    assert planner.wait_s(replace(see(0), now_s=math.nan)) == math.inf
    nothing: Any = None
    assert planner.wait_s(replace(see(0), now_s=nothing)) == math.inf
    assert not planner.faults
