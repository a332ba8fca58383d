"""DOPD's planner: what it decides, why, and that no stream of metrics makes it unsafe."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdplugins import testing
from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.dopd.config import DopdSettings
from pdplugins.policies.dopd.planner import DopdPlanner
from pdplugins.policies.dopd.ratio import pd_ratio
from pdplugins.resources import data_dir
from pdplugins.types import Deployment, PlannerView, Pool, ScalePlan, TellsSignals, Traffic, WorkerLoad

NAN, INF = math.nan, math.inf
PERF = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))
DEPLOYMENT = testing.deployment(PERF, gpu_budget=16, decode_tp=2)


def planner(deployment: Deployment = DEPLOYMENT, **changed: object) -> DopdPlanner:
    return DopdPlanner(DopdSettings(**changed), deployment)  # type: ignore[arg-type]


def plans(subject: DopdPlanner, traffic: list[Traffic | None], after_s: float = 0.0) -> list[ScalePlan]:
    """Plan window by window on a host that always has the workers that were last wanted."""
    made: list[ScalePlan] = []
    for index, window in enumerate(traffic):
        prefill, decode = subject._pools
        made.append(subject.plan(PlannerView(after_s + 5.0 * (index + 1), window, Pool(prefill), Pool(decode))))
    return made


def steady(rate: float, isl: float = 1000, osl: float = 200, count: int = 60) -> list[Traffic | None]:
    return [Traffic(5.0, 5 * rate, isl, osl) for _ in range(count)]


numbers = st.one_of(st.none(), st.floats(), st.floats(0, 1e4), st.sampled_from([0.0, 1.0, 1e300]))
traffics = st.one_of(
    st.none(),
    st.builds(Traffic, st.one_of(st.floats(), st.just(5.0)), st.floats(), numbers, numbers, numbers, numbers),
    st.builds(Traffic, st.just(5.0), st.floats(0, 500), st.floats(1, 1e5), st.floats(1, 1e4)),
)
loads = st.builds(WorkerLoad, st.just("w"), st.floats(), st.floats(), st.floats(), st.floats())
pools = st.builds(
    Pool, st.integers(0, 20), st.integers(0, 20), st.integers(0, 5), st.lists(loads, max_size=3).map(tuple)
)
streams = st.lists(st.tuples(traffics, pools, pools), min_size=1, max_size=40).map(
    lambda rows: [PlannerView(5.0 * (i + 1), *row) for i, row in enumerate(rows)]
)
choices = st.fixed_dictionaries(
    {"predictor": st.sampled_from(["last-value", "kalman", "arima"]), "paper_literal": st.booleans()}
)


@pytest.mark.moderate
@settings(max_examples=60)
@example([PlannerView(5.0, Traffic(7e-91, 1.3e218, 1.0, 1.0), Pool(0), Pool(0))], {"paper_literal": True}, 3)
@example([PlannerView(5.0, Traffic(7e-91, 1.3e218, 1.0, 1.0), Pool(0), Pool(0))], {"paper_literal": False}, 3)
@given(streams, choices, st.integers(3, 40))
def test_any_stream_keeps_one_worker_per_role_within_the_budget(
    stream: list[PlannerView], chosen: dict[str, object], gpu_budget: int
) -> None:
    deployment = replace(DEPLOYMENT, gpu_budget=gpu_budget)
    subject = planner(deployment, **chosen)
    for view in stream:
        plan = subject.plan(view)
        assert plan.prefill >= 1
        assert plan.decode >= 1
        assert deployment.gpus(plan.prefill, plan.decode) <= gpu_budget
        assert "\n" not in plan.reason
        assert all(math.isfinite(value) for value in plan.signals.values())


def test_prompts_that_stay_on_decode_workers_need_no_prefill_workers() -> None:
    """Half of the prompts have 50 tokens and stay; the others have 1,950 and do not."""
    rate, isl_sq = 8.0, (50**2 + 1950**2) / 2
    window = Traffic(5.0, 5 * rate, 1000.0, 200.0, isl_sq_tokens=isl_sq, local_share=0.5, local_prefill_tokens=50.0)
    plan = plans(planner(learn_bursts=False), [window] * 300)[-1]
    work = rate / 2 * PERF.prefill_s(1950, 1)
    assert plan.signals["prefill_work"] == pytest.approx(work, rel=0.15)  # 15 %: the rate's upper bound
    everyone = plans(planner(learn_bursts=False), [replace(window, local_share=None, local_prefill_tokens=None)] * 300)
    assert everyone[-1].signals["prefill_work"] > plan.signals["prefill_work"]
    assert "50 % prefill locally" in plan.reason


def test_prompts_that_stay_on_decode_workers_take_their_time() -> None:
    stay = Traffic(5.0, 5 * 100.0, 100.0, 20.0, local_share=1.0, local_prefill_tokens=100.0)
    roomy = replace(DEPLOYMENT, gpu_budget=1000)
    local, remote = (
        plans(planner(roomy, learn_bursts=False), [window] * 60)[-1]
        for window in (stay, replace(stay, local_share=0.0, local_prefill_tokens=None))
    )
    added = 100.0 * (PERF.prefill_s(100, 2) - PERF.prefill_s(0, 2))
    assert local.decode - remote.decode == pytest.approx(added, abs=1.5)
    assert local.signals["prefill_work"] == 0
    assert local.prefill < remote.prefill


def test_cached_prompt_tokens_need_no_prefill_but_are_context() -> None:
    cached = Traffic(5.0, 40.0, 4000.0, 200.0, prefix_hit_rate=0.5)
    fresh = replace(cached, isl_tokens=2000.0, prefix_hit_rate=None)
    first, second = (plans(planner(learn_bursts=False), [window] * 60)[-1].signals for window in (cached, fresh))
    assert first["prefill_work"] == pytest.approx(second["prefill_work"])
    assert first["cc_d"] < second["cc_d"]


def test_the_spread_of_the_lengths_comes_from_the_host_and_else_from_the_settings() -> None:
    equal = Traffic(5.0, 100.0, 2000.0, 200.0, isl_sq_tokens=2000.0**2)
    spread = replace(equal, isl_sq_tokens=3 * 2000.0**2)
    unknown = replace(equal, isl_sq_tokens=None)
    made = {name: plans(planner(), [window] * 100)[-1] for name, window in
            {"equal": equal, "spread": spread, "unknown": unknown}.items()}  # fmt: skip
    assert made["equal"].signals["isl_cv"] < 0.1
    assert made["spread"].signals["isl_cv"] == pytest.approx(2**0.5, rel=0.02)
    assert made["unknown"].signals["isl_cv"] == 1.0
    work = {name: plan.signals["prefill_work"] for name, plan in made.items()}
    assert work["equal"] < work["unknown"] < work["spread"]  # Eq. 8
    assert isinstance(planner(), TellsSignals)


@pytest.mark.parametrize("value", [NAN, INF, -1.0, 0.0, 1e300, None])
def test_impossible_statistics_of_the_traffic_stop_no_plan(value: float | None) -> None:
    said = Traffic(5.0, 20.0, value, 200.0, isl_sq_tokens=value, local_share=value, prefix_hit_rate=value,
                   local_prefill_tokens=value)  # fmt: skip
    plan = plans(planner(), [*steady(4.0, count=3), said])[-1]
    assert all(map(math.isfinite, plan.signals.values()))


@settings(max_examples=30)
@given(streams, choices)
def test_the_same_stream_gives_the_same_decisions(stream: list[PlannerView], chosen: dict[str, object]) -> None:
    first, second = planner(**chosen), planner(**chosen)
    assert [first.plan(view) for view in stream] == [second.plan(view) for view in stream]


@settings(max_examples=20)
@given(
    rate=st.floats(0.1, 8), isl=st.floats(50, 4000), osl=st.floats(10, 600),
    predictor=st.sampled_from(["last-value", "kalman", "arima"]), literal=st.booleans(),
)  # fmt: skip
def test_constant_load_settles(rate: float, isl: float, osl: float, predictor: str, literal: bool) -> None:
    subject = planner(predictor=predictor, paper_literal=literal, hold_s=60.0)
    after = plans(subject, steady(rate, isl, osl, 90))[60:]  # the queue of a start with one worker each is long gone
    assert len({(plan.prefill, plan.decode) for plan in after}) == 1


@pytest.mark.parametrize("predictor", ["last-value", "kalman", "arima"])
def test_at_zero_traffic_one_worker_of_each_role_is_left_after_the_hold(predictor: str) -> None:
    subject = planner(predictor=predictor, hold_s=60.0)
    busy = plans(subject, steady(8.0))[-1]
    assert busy.prefill > 1
    idle = plans(subject, [Traffic(5.0, 0)] * 20, after_s=300.0)
    assert (idle[-1].prefill, idle[-1].decode) == (1, 1)
    assert idle[-1].reason == "1P1D: no request for 60 s"
    first_down = next(i for i, plan in enumerate(idle) if plan.prefill < busy.prefill)
    assert 5.0 * (first_down + 1) >= 60.0


def test_algorithm_2_as_printed_scales_down_at_zero_traffic_too() -> None:
    subject = planner(paper_literal=True)
    flowing = [Traffic(5.0, 100, 1000, 200, ttft_s=0.3, tpot_s=0.04)] * 60
    assert plans(subject, flowing)[-1].prefill > 1  # type: ignore[arg-type]
    idle = plans(subject, [Traffic(5.0, 0)] * 60, after_s=300.0)
    assert (idle[-1].prefill, idle[-1].decode) == (1, 1)


def test_traffic_after_an_idle_night_is_served_again() -> None:
    subject = planner(hold_s=60.0)
    plans(subject, steady(8.0))
    plans(subject, [Traffic(5.0, 0)] * 100, after_s=300.0)
    assert plans(subject, steady(8.0), after_s=900.0)[-1].prefill > 1


@pytest.mark.parametrize(
    "bad",
    [None, Traffic(5.0, NAN), Traffic(NAN, 5.0), Traffic(0.0, 5.0), Traffic(5.0, -1.0), Traffic(5.0, INF, 1.0, 1.0)],
    ids=["missing", "requests NaN", "window NaN", "window zero", "negative", "infinite"],
)
def test_unusable_metrics_hold_the_last_plan_and_say_so(bad: Traffic | None) -> None:
    subject = planner()
    before = plans(subject, steady(8.0))[-1]
    held = subject.plan(PlannerView(1000.0, bad, Pool(1), Pool(1)))
    assert (held.prefill, held.decode) == (before.prefill, before.decode)
    assert held.reason.startswith(f"holding {before.prefill}P{before.decode}D: ")


def test_before_the_first_metrics_the_pools_stay_as_they_are() -> None:
    held = planner().plan(PlannerView(5.0, None, Pool(3, starting=1), Pool(2)))
    assert (held.prefill, held.decode) == (4, 2)
    assert held.reason == "holding 4P2D: no traffic metrics"


def test_a_window_without_lengths_is_planned_with_the_lengths_before() -> None:
    subject = planner()
    before = plans(subject, steady(8.0))[-1]
    after = subject.plan(PlannerView(1000.0, Traffic(5.0, 40.0, None, NAN), Pool(1), Pool(1)))
    assert (after.prefill, after.decode) == (before.prefill, before.decode)


def test_one_odd_window_does_not_change_the_plan_wildly() -> None:
    subject = planner()
    before = plans(subject, steady(4.0))[-1]
    after = plans(subject, [Traffic(5.0, NAN, NAN, NAN), *steady(4.0, count=5)], after_s=300.0)
    assert {(plan.prefill, plan.decode) for plan in after} == {(before.prefill, before.decode)}


def test_a_forecast_of_no_request_is_planned_with() -> None:
    subject = planner(predictor="last-value", follow_rises=False, learn_bursts=False, rate_sigmas=0.0)
    plans(subject, steady(4.0))
    quiet = plans(subject, [Traffic(5.0, 0.0)] * 3, after_s=300.0)
    assert all(plan.prefill >= 1 and plan.decode >= 1 for plan in quiet)


@pytest.mark.parametrize(
    "odd", [{"requests": 1e4}, {"requests": 1e9}, {"osl_tokens": 1e9}, {"isl_tokens": 1e9}, {"isl_sq_tokens": 1e15}]
)
def test_one_damaged_window_is_forgotten_in_the_time_of_what_was_learned(odd: dict[str, float]) -> None:
    """Its square would keep the whole budget for half a day and longer."""
    window = Traffic(5.0, 5.0, 500.0, 50.0, isl_sq_tokens=3e5)
    subject = planner(replace(DEPLOYMENT, gpu_budget=8))
    made = plans(subject, [*[window] * 300, replace(window, **odd), *[window] * 1800])
    before, after = made[299], made[-1]
    assert (after.prefill, after.decode) == (before.prefill, before.decode)


def test_a_forecaster_that_raises_is_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = planner(predictor="arima")
    before = plans(subject, steady(8.0))[-1]

    def broken(_self: object) -> float:
        raise RuntimeError("no convergence")

    monkeypatch.setattr("pdplugins.policies.dopd.arima.Arima.forecast", broken)
    after = plans(subject, steady(8.0, count=3), after_s=300.0)[-1]
    assert (after.prefill, after.decode) == (before.prefill, before.decode)
    assert after.signals["forecast_failures"] >= 3
    assert "the ISL forecaster failed (RuntimeError: no convergence), its last value is used" in after.reason


def test_more_load_needs_more_workers_of_the_phase_that_carries_it() -> None:
    short = plans(planner(), steady(4.0, isl=500, osl=100))[-1]
    long_prompts = plans(planner(), steady(4.0, isl=3000, osl=100))[-1]
    long_answers = plans(planner(), steady(4.0, isl=500, osl=4000))[-1]
    assert long_prompts.prefill > short.prefill
    assert long_answers.decode > short.decode


def test_a_binding_budget_keeps_the_ratio_of_eq_15() -> None:
    wide = plans(planner(replace(DEPLOYMENT, gpu_budget=1000)), steady(40.0))[-1]
    tight = plans(planner(), steady(40.0))[-1]
    assert DEPLOYMENT.gpus(tight.prefill, tight.decode) <= DEPLOYMENT.gpu_budget
    share = tight.prefill / wide.prefill, tight.decode / wide.decode
    assert share[0] == pytest.approx(share[1], abs=0.25)


def test_a_binding_budget_cuts_headroom_before_busy_workers() -> None:
    """Prompts that take most of the TTFT SLO want many workers; the decode workers that are busy stay."""
    tight = planner(replace(DEPLOYMENT, gpu_budget=30), wait_share=0.1)
    made = plans(tight, steady(6.0, isl=6800, osl=800))
    work, busy = (made[-1].signals[name] for name in ("prefill_work", "forecast_concurrency"))
    assert made[-1].prefill >= work
    assert made[-1].decode >= busy / made[-1].signals["cc_d"]
    assert "exceeds 30 GPUs" in made[-1].reason
    assert len({(plan.prefill, plan.decode) for plan in made[30:]}) == 1


def test_the_reason_and_the_signals_tell_the_numbers() -> None:
    plan = plans(planner(), steady(8.0))[-1]
    assert plan.signals["forecast_isl_tokens"] == pytest.approx(1000, rel=0.01)
    assert plan.signals["forecast_osl_tokens"] == pytest.approx(200, rel=0.01)
    assert plan.signals["cc_d"] == pytest.approx(PERF.kv_capacity_tokens(2) / 1100, rel=0.01)
    assert {"forecast_rate", "forecast_concurrency", "pd_ratio", "prefill_utilisation"} <= set(plan.signals)
    assert f"{plan.prefill}P{plan.decode}D" in plan.reason
    assert "8.00 req/s" in plan.reason


def test_a_budget_for_less_than_two_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dopd: one worker of each role needs 3 GPUs, gpu_budget is 2; raise"):
        planner(replace(DEPLOYMENT, gpu_budget=2))


def test_as_printed_algorithm_2_over_provisions_prefill_beyond_one_decode_worker() -> None:
    """R_opt already holds the total concurrency; times n_d it counts decode workers twice."""
    roomy = replace(DEPLOYMENT, gpu_budget=1000)

    def literal(concurrency: float) -> ScalePlan:
        # 300 ms and 200 tokens at 20 ms in the system: Little's law gives the rate for a concurrency.
        window = Traffic(5.0, 5 * concurrency / 4.3, 1000, 200, ttft_s=0.3, tpot_s=0.02)
        return plans(planner(roomy, paper_literal=True), [window] * 10)[-1]

    one, many = literal(200), literal(800)
    cc_d = one.signals["cc_d"]
    assert one.decode == 1
    assert many.decode == math.ceil(800 / cc_d) == 4
    assert one.prefill == math.ceil(one.signals["pd_ratio"])
    assert many.prefill == math.ceil(many.signals["pd_ratio"] * 4)
    # Eq. 15 at the concurrency of each worker, 4 times.
    step_s = PERF.decode_step_s(200, 1100, 2)
    balanced = 4 * pd_ratio(PERF.prefill_s(1000, 1), step_s, 200, 200)
    assert many.prefill > 1.5 * balanced


def test_as_printed_algorithm_2_reads_tpot_at_half_the_length() -> None:
    window = Traffic(5.0, 100, 1000, 200, ttft_s=0.3, tpot_s=0.02)
    plan = plans(planner(paper_literal=True), [window] * 10)[-1]
    r = plan.signals["forecast_concurrency"]
    assert r == pytest.approx(20 * 4.3)
    step_s = PERF.decode_step_s(r, 600, 2)
    assert plan.signals["pd_ratio"] == pytest.approx(pd_ratio(PERF.prefill_s(1000, 1), step_s, 200, r))


def test_in_flight_requests_are_counted_where_workers_report() -> None:
    prefill = Pool(
        1, loads=(WorkerLoad("p", queued_requests=7, running_requests=1), WorkerLoad("q", NAN, NAN, NAN, NAN))
    )
    decode = Pool(1, loads=(WorkerLoad("d", running_requests=32),))
    view = PlannerView(5.0, Traffic(5.0, 10, 1000, 200), prefill, decode)
    assert planner(paper_literal=True).plan(view).signals["forecast_concurrency"] == 40


def test_extra_terms_are_off_in_the_printed_version() -> None:
    """One quiet window shrinks the pools at once: no hold, no spare worker, no headroom."""
    subject = planner(paper_literal=True)
    busy = Traffic(5.0, 200, 1000, 200, ttft_s=0.3, tpot_s=0.02)
    quiet = Traffic(5.0, 1, 1000, 200, ttft_s=0.3, tpot_s=0.02)
    assert plans(subject, [busy] * 10)[-1].prefill > 1
    assert plans(subject, [quiet] * 2, after_s=50.0)[-1].prefill == 1


def test_a_queue_adds_the_workers_that_clear_it_within_one_start_up() -> None:
    calm, pressed = planner(), planner()
    waiting = Pool(1, loads=(WorkerLoad("p", queued_requests=500),))
    view = PlannerView(5.0, Traffic(5.0, 10, 1000, 200), Pool(1), Pool(1))
    calm_plan = calm.plan(view)
    pressed_plan = pressed.plan(replace(view, prefill=waiting))
    extra = 500 * PERF.prefill_s(1000, 1) / DEPLOYMENT.startup_s
    assert pressed_plan.prefill - calm_plan.prefill == pytest.approx(extra, abs=1.5)
    assert pressed_plan.signals["backlog_s"] > 0
    assert planner(drain_backlog=False).plan(replace(view, prefill=waiting)).prefill == calm_plan.prefill


def test_bursts_are_learned_as_headroom() -> None:
    """The same mean load in bursts needs more workers than evenly spread."""
    even, bursty = planner(), planner()
    spread: list[Traffic | None] = [Traffic(5.0, 10, 1000, 200)] * 240
    bursts: list[Traffic | None] = [Traffic(5.0, 120 if i % 12 == 0 else 0, 1000, 200) for i in range(240)]
    even_plan, bursty_plan = plans(even, spread)[-1], plans(bursty, bursts)[-1]
    assert bursty_plan.signals["burst_dispersion_s"] > 3 * even_plan.signals["burst_dispersion_s"]
    assert bursty_plan.prefill > even_plan.prefill


def test_a_step_of_the_load_is_planned_for_after_two_windows() -> None:
    stepped = [*steady(4.0), *steady(14.0, count=2)]
    followed, before = (plans(planner(follow_rises=follow), stepped)[-1] for follow in (True, False))
    assert followed.signals["forecast_rate"] > 12 > before.signals["forecast_rate"]
    assert followed.prefill > before.prefill


def test_noise_does_not_pull_a_forecast_to_the_mean() -> None:
    """After an hour of even load, a level that is there for a minute is planned for."""
    draw = random.Random(3)
    noise = [Traffic(5.0, draw.randint(33, 47), 1000, 200) for _ in range(720)]
    clear, pulled = (plans(planner(follow_rises=follow), [*noise, *steady(13.0, count=12)]) for follow in (True, False))
    assert clear[-1].signals["forecast_rate"] > 12.25 > pulled[-1].signals["forecast_rate"]


def test_a_first_rise_is_believed_while_the_workers_for_it_start() -> None:
    """Nothing has told yet whether high levels last; that there was none before does not tell it."""
    slow = replace(DEPLOYMENT, startup_s=180.0)
    made = plans(planner(slow), [*steady(4.0, count=80), *steady(14.0, count=36)])[-34:]
    assert min(plan.signals["forecast_rate"] for plan in made) > 12


def test_prompts_that_leave_little_of_the_slo_hardly_wait() -> None:
    """A prefill of 1.6 s leaves 0.4 s of the two: half of that is planned for, not half of the SLO."""
    calm = planner(wait_share=0.5, rate_sigmas=0.0, length_cv2=0.0, learn_bursts=False, spare=0.0)
    plan = plans(calm, steady(1.0, isl=6800, osl=20))[-1]
    work_s = plan.signals["prefill_work"]  # of the one request a second
    assert 1.5 < work_s < 1.7
    assert plan.prefill == math.ceil(work_s + work_s * work_s / (2 * 0.5 * (2.0 - work_s)))


def test_more_workers_are_spared_where_a_start_up_takes_long() -> None:
    short, usual, long = (
        plans(planner(replace(DEPLOYMENT, startup_s=startup_s), rate_sigmas=0.0), steady(4.0, count=120))[-1]
        for startup_s in (5.0, 30.0, 270.0)
    )
    assert short.prefill == usual.prefill == long.prefill - 2


def test_rises_are_not_followed_in_the_printed_version() -> None:
    stepped = [*steady(4.0), *steady(14.0, count=2)]
    one, other = (plans(planner(follow_rises=follow, paper_literal=True), stepped) for follow in (True, False))
    assert one == other


def test_a_smaller_pool_must_have_been_enough_for_the_whole_hold() -> None:
    subject = planner(hold_s=60.0, learn_bursts=False)
    high = plans(subject, steady(8.0))[-1]
    low = plans(subject, steady(1.0, count=40), after_s=300.0)
    assert [plan.prefill for plan in low[:11]] == [high.prefill] * 11
    assert low[-1].prefill < high.prefill


@pytest.mark.parametrize("first", [None, Traffic(5.0, 1, 1000, 2)], ids=["no metrics yet", "metrics"])
def test_the_pools_at_start_are_kept_until_the_load_is_known(first: Traffic | None) -> None:
    subject = planner()
    for index, window in enumerate([first, Traffic(5.0, 1, 1000, 2)]):
        plan = subject.plan(PlannerView(5.0 * (index + 1), window, Pool(6), Pool(3)))
        assert (plan.prefill, plan.decode) == (6, 3)


@pytest.mark.moderate
def test_a_step_with_every_series_refitted_over_600_points_is_under_50_ms() -> None:
    subject = planner(predictor="arima")
    wavy: list[Traffic | None] = [
        Traffic(5.0, 20 + 5 * math.sin(i) + i % 7, 1000 + 50 * (i % 11), 200 + 10 * (i % 5)) for i in range(600)
    ]
    plans(subject, wavy)
    took_s = []
    for index in range(20):
        jump = Traffic(5.0, 10.0 ** (index % 3 + 1), 100.0 * 4 ** (index % 5), 10.0 * 3 ** (index % 4))
        started = time.process_time()  # not what other processes take
        subject.plan(PlannerView(3005.0 + 5 * index, jump, Pool(1), Pool(1)))
        took_s.append(time.process_time() - started)
    assert sorted(took_s)[len(took_s) // 2] < 0.05


def test_at_a_cold_start_the_first_plan_waits_for_enough_requests_and_their_length() -> None:
    """25 requests tell the rate to a fifth. Then, and before that, it looks twice a second."""
    subject = planner()
    few, enough = Traffic(1.0, 24, 1000, 200), Traffic(1.0, 25, 1000, 200)
    looks = [None, few, replace(enough, isl_tokens=None), replace(enough, osl_tokens=None), enough]
    assert [subject.wait_s(cold_view(seen)) for seen in looks] == [0.5, 0.5, 0.5, 0.0, 0.0]
    plan = subject.plan(cold_view(enough))
    assert plan.prefill > 1
    assert subject.wait_s(cold_view(enough)) is None, "the first plan is made: now the interval counts"


@pytest.mark.parametrize("pools", [(2, 1), (1, 2)])
def test_pools_that_somebody_chose_are_good_for_an_interval(pools: tuple[int, int]) -> None:
    view = PlannerView(1.0, Traffic(1.0, 100, 1000, 200), Pool(pools[0]), Pool(pools[1]))
    assert planner().wait_s(view) is None
    assert planner(paper_literal=True).wait_s(cold_view(view.traffic)) is None


def test_a_tick_without_traffic_does_not_end_a_cold_start() -> None:
    """Servers are often there before their first client."""
    subject = planner()
    subject.plan(PlannerView(5.0, Traffic(5.0, 0), Pool(1), Pool(1)))
    assert subject.wait_s(cold_view(Traffic(1.0, 25, 1000, 200), 6.0)) == 0.0


@given(traffics)
def test_whatever_traffic_looks_like_the_wait_is_none_or_short(traffic: Traffic | None) -> None:
    assert planner().wait_s(cold_view(traffic)) in (None, 0.0, 0.5)


def cold_view(traffic: Traffic | None, now_s: float = 1.0) -> PlannerView:
    return PlannerView(now_s, traffic, Pool(1), Pool(1))


def test_each_plan_says_what_it_is_worth_beside_the_pools_before() -> None:
    subject = planner()
    calm = plans(subject, steady(2.0))[-1]
    assert calm.signals["expected_attainment"] == calm.signals["expected_attainment_unchanged"] > 0.95
    grown = plans(subject, steady(40.0, count=12), after_s=300.0)
    assert grown[-1].prefill > calm.prefill
    for before, after in pairwise([calm, *grown]):
        if after.prefill > before.prefill:
            assert after.signals["expected_attainment"] > after.signals["expected_attainment_unchanged"]


def test_a_cold_start_sizes_prefill_by_what_waits_and_decode_when_an_answer_has_ended() -> None:
    """Hosts tell the lengths of what ended, and while one worker has all the work that is little."""
    subject = planner()
    waiting = Pool(1, loads=(WorkerLoad("p0", 40, 40 * 2000.0, 1, 2000.0),))
    start = PlannerView(1.0, Traffic(1.0, 40), waiting, Pool(1))
    assert subject.wait_s(start) == 0.0
    first = subject.plan(start)
    assert first.signals["forecast_isl_tokens"] == 2000
    assert first.prefill > 5
    assert first.decode == 1
    assert "decode follows" in first.reason
    later = PlannerView(2.0, Traffic(1.0, 40), Pool(1, first.prefill - 1), Pool(1))
    assert subject.wait_s(later) == 0.5, "no answer has ended"
    ended = replace(later, traffic=Traffic(1.0, 40, 2000, 500))
    assert subject.wait_s(ended) == 0.0
    assert subject.plan(ended).decode > 1
    assert subject.wait_s(ended) is None
