"""RAPID's Algorithm 1: what moves when, and that no stream of metrics breaks the budget."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.policies.rapid.config import RapidSettings
from pdplugins.policies.rapid.controller import RapidController
from pdplugins.resources import data_dir
from pdplugins.testing import deployment
from pdplugins.types import GpuView, PlannerView, Pool, PowerPlan, Role, Traffic, WorkerLoad

P, D = Role.PREFILL, Role.DECODE
PERF = TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))
DEPLOYMENT = deployment(PERF, ttft_s=1.0, tpot_s=0.04)
SLOW_PREFILL, SLOW_DECODE, FINE, BOTH = (2.0, 0.02), (0.5, 0.06), (0.5, 0.02), (2.0, 0.06)


class Node:
    """GPUs that take whatever caps and roles the controller wants at once, and a clock."""

    def __init__(self, prefill: int = 4, decode: int = 4, **chosen: object) -> None:
        self.subject = RapidController(RapidSettings(**chosen), DEPLOYMENT)  # type: ignore[arg-type]
        self.roles = [P] * prefill + [D] * decode
        self.now_s = 0.0
        self.plan = PowerPlan({})

    def look(
        self,
        felt: tuple[float | None, float | None],
        queued: float = 100.0,
        after_s: float = 10.0,
        *,
        decode: tuple[WorkerLoad, ...] = (),
    ) -> PowerPlan:
        """Show the TTFT and TPOT of ended requests, and the loads of the decode workers."""
        self.now_s += after_s
        gpus = tuple(GpuView(i, role, 300.0 + i, self.plan.caps_w.get(i, 0.0)) for i, role in enumerate(self.roles))
        traffic = Traffic(0.5, 1, ttft_s=felt[0], tpot_s=felt[1])
        pools = Pool(self.roles.count(P), loads=(WorkerLoad("p", queued),)), Pool(self.roles.count(D), loads=decode)
        self.plan = self.subject.control(gpus, PlannerView(self.now_s, traffic, *pools))
        for flip in self.plan.flips:
            self.roles[flip.gpu] = flip.role
        return self.plan

    def caps(self) -> tuple[float, float]:
        by_role = {role: {self.plan.caps_w[i] for i, r in enumerate(self.roles) if r is role} for role in (P, D)}
        assert all(len(caps) == 1 for caps in by_role.values()), "all GPUs of a phase have one cap"
        return by_role[P].pop(), by_role[D].pop()


def test_the_papers_run_power_first_then_a_gpu_and_uniform_caps() -> None:
    """Figure 9 (c): from 600 W each, steps of 50 W; at the limit a decode GPU joins prefill, at 600 W each."""
    node = Node()
    seen = []
    for _ in range(3):
        node.look(SLOW_PREFILL)
        seen.append(node.caps())
    assert seen == [(650, 550), (700, 500), (600, 600)], "the third step reaches 750 W: a GPU moves in its place"
    assert node.roles.count(P) == 5


def test_decode_heavy_load_brings_the_watts_back_and_then_gpus_until_one_prefill_gpu_is_left() -> None:
    node = Node(prefill_w=750, decode_w=450)
    caps = [(node.look(SLOW_DECODE, queued=0), node.caps())[1] for _ in range(3)]
    assert caps == [(700, 500), (650, 550), (600, 600)], "decode is given no more than 600 W"
    for _ in range(20):
        node.look(SLOW_DECODE, queued=0)
    assert (node.roles.count(P), node.roles.count(D)) == (1, 7)


def test_nothing_moves_while_both_phases_are_fine_or_both_are_slow() -> None:
    for felt in (FINE, BOTH, (None, None), (math.nan, math.inf)):
        node = Node()
        assert node.look(felt).caps_w == dict.fromkeys(range(8), 600.0)
        assert node.plan.flips == ()


def test_a_slow_prefill_without_a_queue_is_not_overload() -> None:
    assert Node().look(SLOW_PREFILL, queued=3).reason == ""
    assert Node().look(SLOW_PREFILL, queued=9).reason.startswith("50 W from each decode GPU to prefill")


def decoding(tbt_s: float | None, requests: float = 10.0) -> WorkerLoad:
    return WorkerLoad("d", running_requests=requests, recent_tbt_s=tbt_s)


def test_slow_tokens_count_before_any_answer_with_them_has_ended() -> None:
    """What ended lately was fast, and what decodes now is slow; or the other way round."""
    assert "to decode" in Node().look((0.5, 0.02), decode=(decoding(0.06),)).reason
    assert "to decode" in Node().look((0.5, None), decode=(decoding(0.06),)).reason
    assert Node().look((0.5, 0.06), decode=(decoding(0.02),)).reason == ""


def test_one_slow_step_moves_nothing_and_slow_steps_that_last_do() -> None:
    """A prompt that is computed again after a preemption takes a second; the steps around it take 30 ms."""
    node = Node()
    steps_s = [0.03, 0.03, 1.0, 0.03, 0.03, 0.03, 0.05, 0.05, 0.05]
    moved = [bool(node.look((0.5, None), decode=(decoding(step_s),), after_s=0.5).reason) for step_s in steps_s]
    assert [index for index, it in enumerate(moved) if it] == [8]


def test_each_request_that_decodes_counts_once() -> None:
    """The SLO is 40 ms: one worker with few requests does not speak for the one with many."""
    few, many = decoding(0.10, 1), decoding(0.03, 99)
    assert Node().look((0.5, None), decode=(few, many)).reason == ""
    assert "to decode" in Node().look((0.5, None), decode=(replace(few, running_requests=99), many)).reason


@pytest.mark.parametrize("said", [None, math.nan, math.inf])
def test_the_tpot_of_ended_requests_counts_where_no_worker_tells_its_intervals(said: float | None) -> None:
    assert "to decode" in Node().look((0.5, 0.06), decode=(decoding(said),)).reason
    assert "to decode" in Node().look((0.5, None), decode=(decoding(said), decoding(0.06, math.nan))).reason


def test_the_cooldown_is_longer_after_a_gpu_than_after_watts() -> None:
    node = Node(cooldown_s=2, gpu_cooldown_s=5, recent_s=0.5)
    moved = [bool(node.look(SLOW_PREFILL, after_s=0.5).reason) for _ in range(22)]
    assert [index for index, it in enumerate(moved) if it] == [0, 4, 8, 18]


@pytest.mark.parametrize(
    ("move", "caps", "prefill"), [("nothing", (600, 600), 4), ("power", (750, 450), 4), ("gpus", (600, 600), 7)]
)
def test_what_may_move_is_a_setting(move: str, caps: tuple[float, float], prefill: int) -> None:
    node = Node(move=move)
    for _ in range(10):
        node.look(SLOW_PREFILL)
    assert (node.caps(), node.roles.count(P)) == (caps, prefill)


def test_a_cap_that_is_not_given_is_what_the_other_phase_leaves() -> None:
    node = Node(prefill_w=675)
    node.look(FINE)
    assert node.caps() == (675, 525)


def test_no_cap_is_below_the_least_where_that_is_no_whole_number() -> None:
    node = Node(min_w=400.5, budget_w=8 * 400.5)
    assert set(node.look(FINE).caps_w.values()) == {400.5}


def test_steps_of_less_than_a_watt_move_power_too() -> None:
    node = Node(5, 3, move="power", step_w=0.3)
    for _ in range(20):
        node.look(SLOW_PREFILL)
    prefill_w, decode_w = node.caps()
    assert decode_w == pytest.approx(600 - 20 * 0.3)
    assert prefill_w == pytest.approx(600 + 20 * 0.3 * 3 / 5, abs=0.05)


def test_a_static_allocation_over_the_budget_becomes_uniform() -> None:
    node = Node(prefill_w=750, decode_w=600)
    node.look(FINE)
    assert node.caps() == (600, 600)


def test_an_impossible_budget_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="8 GPUs of at least 400 W exceed budget_w 3000"):
        RapidController(RapidSettings(budget_w=3000), DEPLOYMENT)
    with pytest.raises(ValidationError, match="prefill_w must lie between"):
        RapidSettings(prefill_w=800)


felt = st.tuples(st.one_of(st.none(), st.floats()), st.one_of(st.none(), st.floats()))
looks = st.tuples(st.one_of(felt, st.sampled_from([SLOW_PREFILL, SLOW_DECODE, FINE])), st.floats(), st.floats(0, 10))


@pytest.mark.moderate
@settings(max_examples=150)
@given(
    prefill=st.integers(0, 7), seen=st.lists(looks, max_size=30), budget_w=st.floats(3200, 7000),
    move=st.sampled_from(["nothing", "power", "gpus", "both"]), refuses=st.booleans(), step_w=st.floats(0.1, 100),
)  # fmt: skip
def test_any_stream_keeps_the_budget_and_a_gpu_in_each_phase(
    prefill: int,
    seen: list[tuple[tuple[float | None, float | None], float, float]],
    budget_w: float,
    move: str,
    refuses: bool,
    step_w: float,
) -> None:
    """Also on a host that drains for ever, where a flip is never seen to be done."""
    node = Node(prefill, 8 - prefill, budget_w=budget_w, move=move, step_w=step_w)
    started = set(node.roles)
    for what, queued, after_s in seen:
        before = list(node.roles)
        plan = node.look(what, queued, after_s)
        assert math.fsum(plan.caps_w.values()) <= budget_w
        assert set(plan.caps_w) == set(range(8))
        assert all(400 <= cap <= 750 for cap in plan.caps_w.values())
        assert set(node.roles) >= started, "a phase that had a GPU still has one"
        if refuses:
            node.roles = before


@pytest.mark.parametrize("what", [SLOW_PREFILL, SLOW_DECODE, BOTH])
@pytest.mark.parametrize("move", ["power", "gpus", "both"])
def test_latencies_that_no_move_mends_end_at_a_limit(what: tuple[float, float], move: str) -> None:
    """It gives one phase all that it may have, and then nothing moves back and forth."""
    node = Node(4, 4, move=move)
    seen = []
    for _ in range(200):
        plan = node.look(what, queued=100.0, after_s=5.0)
        seen.append((tuple(plan.caps_w.items()), tuple(node.roles)))
    assert len(set(seen[100:])) == 1


def test_gpus_that_come_and_go_keep_the_budget() -> None:
    node = Node(2, 2)
    assert sum(node.look(FINE).caps_w.values()) <= 4800
    node.roles = [P] * 4 + [D] * 4
    assert sum(node.look(FINE).caps_w.values()) <= 4800
    assert replace(node.plan, reason="").flips == ()


def test_the_last_worker_of_a_phase_stays_however_many_gpus_it_has() -> None:
    subject = RapidController(RapidSettings(move="gpus"), DEPLOYMENT)
    gpus = tuple(GpuView(i, P if i < 4 else D, 300.0, 600.0) for i in range(8))
    view = PlannerView(9.0, Traffic(0.5, 1, ttft_s=2.0), Pool(2, loads=(WorkerLoad("p", 99),)), Pool(1))
    assert subject.control(gpus, view).flips == ()
    assert len(subject.control(gpus, replace(view, decode=Pool(2))).flips) == 1


def test_a_flip_that_does_not_happen_is_given_up_and_another_gpu_is_tried() -> None:
    node = Node(move="gpus", flip_timeout_s=60)
    before = list(node.roles)
    asked: list[int] = []
    for _ in range(20):
        asked += [flip.gpu for flip in node.look(SLOW_PREFILL).flips]
        node.roles = list(before)  # the host refuses
    assert len(asked) == 4, "one a minute, as another one may still drain"
    assert len(set(asked)) == 4
    node.look(SLOW_PREFILL, after_s=60)
    assert node.roles.count(P) == 5, "this time the host follows"
