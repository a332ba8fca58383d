"""AMPD's router: the decode worker of a session, and Algorithm 1."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError
from pdplugins.policies.ampd.config import AmpdRouterSettings
from pdplugins.policies.ampd.costs import Costs
from pdplugins.policies.ampd.router import AmpdRouter
from pdplugins.testing import Worker
from pdplugins.types import Ending, Outcome, Placement, Request, Role, WorkerLoad
from tests.policies.ampd.fleet import DEPLOYMENT, PERF, worker

BUSY_S, BUSY_TBT_S = 5.0, 0.5


def route(request: Request, *workers: Worker, slack: str = "windowed", **settings: float) -> Placement:
    router = AmpdRouter(AmpdRouterSettings(slack=slack, **settings), DEPLOYMENT)  # type: ignore[arg-type]
    return router.on_arrival(request, workers, 0.0)


def later(new: int, history: int = 1000, bound: str = "d0") -> Request:
    return Request("r", 0.0, history + new, history_tokens=history, session="s", bound_worker=bound)


# --- binding ---------------------------------------------------------------------------------------------------------


def test_a_new_session_is_bound_to_the_decode_worker_with_the_least_memory_in_use() -> None:
    assert route(Request("r", 0.0, 10), worker("p0"), worker("d0", running=60), worker("d1", running=50)).second == "d1"
    big = worker("d0", running=60, capacity=200_000)
    assert route(Request("r", 0.0, 10), worker("p0"), big, worker("d1", running=50)).second == "d0"


def test_a_session_stays_on_its_decode_worker_however_full_that_is() -> None:
    full = worker("d1", running=90_000)
    assert route(later(10, bound="d1"), worker("p0"), worker("d0"), full).second == "d1"


def test_a_session_whose_decode_worker_is_gone_is_bound_anew_and_prefills_its_whole_history() -> None:
    """All are overloaded, so that the reason shows the estimate: 1100 tokens without any history."""
    placement = route(later(100, bound="d9"), worker("p0", ttft_s=BUSY_S), worker("d0", tbt_s=BUSY_TBT_S))
    assert placement.second == "d0"
    assert f"local: {PERF.prefill_s(1100, 1):.3f} s" in placement.reason


def test_a_worker_that_became_a_prefill_worker_keeps_no_sessions() -> None:
    assert route(later(10, bound="p0"), worker("p0"), worker("d0")).second == "d0"


# --- Algorithm 1 as printed ------------------------------------------------------------------------------------------


def test_lines_1_to_3_a_prefill_worker_with_ttft_slack_gets_the_task() -> None:
    placement = route(later(100), worker("p0", ttft_s=0.91), worker("p1", ttft_s=0.9), worker("d0", tbt_s=0.001))
    assert (placement.first, placement.second, placement.split) == ("p1", "d0", 1100)


def test_lines_1_to_3_take_any_of_those_with_slack() -> None:
    router = AmpdRouter(AmpdRouterSettings(slack="windowed"), DEPLOYMENT)
    workers = (*(worker(f"p{n}", ttft_s=0.1) for n in range(4)), worker("d0"))
    firsts = Counter(router.on_arrival(later(100), workers, 0.0).first for _ in range(400))
    assert sorted(firsts) == ["p0", "p1", "p2", "p3"]
    assert min(firsts.values()) > 60


def test_lines_4_and_5_local_when_no_prefill_worker_but_the_decode_worker_has_slack() -> None:
    busy = worker("p0", ttft_s=0.95)
    assert route(later(100), busy, worker("d0", tbt_s=0.085)).first == "d0"
    assert route(later(100), busy, worker("d0", tbt_s=0.086, queued=50_000)).first == "p0"


@pytest.mark.parametrize(("local_queue", "remote_queue", "first"), [(500, 400, "p1"), (400, 500, "d0")])
def test_lines_6_to_9_without_any_slack_the_least_estimated_time_wins(
    local_queue: int, remote_queue: int, first: str
) -> None:
    workers = (
        worker("p0", ttft_s=BUSY_S, queued=9000),
        worker("p1", ttft_s=BUSY_S, queued=remote_queue),
        worker("d0", tbt_s=BUSY_TBT_S, queued=local_queue),
    )
    assert route(later(100), *workers).first == first


def test_without_local_execution_the_shortest_remote_queue_is_taken() -> None:
    workers = (worker("p0", ttft_s=BUSY_S, queued=9000), worker("p1", ttft_s=BUSY_S, queued=8000), worker("d0"))
    assert route(later(100), *workers).first == "d0"
    assert route(later(100), *workers, local=False).first == "p1"


def test_equation_2_counts_both_transfers() -> None:
    """Queues are such that the remote way is faster by 30 ms, before the KV cache has gone there and back."""
    history, new = 3000, 100
    kv_s = PERF.transfer_s(history) + PERF.transfer_s(new)
    assert 0.030 < kv_s < 0.060
    workers = [worker("p0", ttft_s=BUSY_S, queued=400), worker("d0", tbt_s=BUSY_TBT_S, queued=430)]
    assert route(later(new, history), *workers).first == "d0"
    workers[1] = worker("d0", tbt_s=BUSY_TBT_S, queued=460)
    assert route(later(new, history), *workers).first == "p0"


def test_equation_2_knows_the_degree_of_each_worker() -> None:
    """A prefill worker of two GPUs prefills twice as fast."""
    workers = (
        worker("p0", ttft_s=BUSY_S, queued=1000),
        worker("p1", ttft_s=BUSY_S, queued=1500, tp=2),
        worker("d0", tbt_s=BUSY_TBT_S, queued=5000),
    )
    assert route(later(100), *workers).first == "p1"


@pytest.mark.parametrize(("told", "tp"), [(2, 2), (None, 1), (3, 1), (0, 1)])
def test_a_degree_that_is_not_known_or_not_in_the_profile_is_the_deployments(told: int | None, tp: int) -> None:
    assert Costs(DEPLOYMENT).degree(worker("p0", tp=told)) == tp


def queue_s(*tasks: tuple[int, int], **load: float) -> float:
    """The cost of a queue of tasks, given as (history, new tokens), by Eq. 2."""
    history, new = (sum(one[side] for one in tasks) for side in (0, 1))
    told = {"queued_requests": len(tasks), "prefill_history_tokens": history} | load
    return Costs(DEPLOYMENT).queue_s(worker("p0", queued=new, **told), 1)


def test_equations_1_and_2_count_the_histories_of_those_that_wait() -> None:
    costs = Costs(DEPLOYMENT)
    assert queue_s((50_000, 100)) == pytest.approx(costs.prefill_s(50_000, 100, 1))
    assert queue_s(*[(50_000, 100)] * 7) == pytest.approx(7 * costs.prefill_s(50_000, 100, 1))
    assert queue_s((30_000, 100), (70_000, 100)) == pytest.approx(
        costs.prefill_s(30_000, 100, 1) + costs.prefill_s(70_000, 100, 1)
    )
    assert queue_s((50_000, 100), prefill_history_tokens=math.nan) == pytest.approx(costs.prefill_s(0, 100, 1))


@pytest.mark.parametrize("slack", ["windowed", "predicted"])
def test_a_queue_of_long_histories_is_avoided_though_it_has_fewer_new_tokens(slack: str) -> None:
    """60 s of attention wait on p0, which has 10 tokens less in its queue."""
    workers = (
        worker("p0", ttft_s=BUSY_S, queued=290, prefill_history_tokens=100_000_000),
        worker("p1", ttft_s=BUSY_S, queued=300, prefill_history_tokens=0),
        worker("d0", tbt_s=BUSY_TBT_S, queued=5000),
    )
    assert route(later(100), *workers, slack=slack).first == "p1"


def test_what_runs_now_counts_as_one_of_the_queue_and_not_as_part_of_each() -> None:
    """A prefill worker that runs one prompt of 500 tokens while another one waits."""
    both = Costs(DEPLOYMENT).queue_s(worker("p0", queued=500, running=500), 1)
    assert both == pytest.approx(2 * PERF.prefill_s(500, 1))


@pytest.mark.parametrize("slack", ["windowed", "predicted"])
def test_equation_1_counts_the_local_prefill_that_runs_now(slack: str) -> None:
    """The queue of d0 is empty, but it is in the middle of 900 tokens of another round."""
    remote = worker("p0", ttft_s=BUSY_S, queued=600)
    for running, first in ((0, "d0"), (900, "p0")):
        decode = worker("d0", tbt_s=0.0 if slack == "predicted" else BUSY_TBT_S, prefill_tokens=running)
        assert route(later(100), remote, decode, slack=slack).first == first


def test_decodes_are_no_prefill_queue() -> None:
    assert Costs(DEPLOYMENT).queue_s(worker("d0", running=9000, prefill_tokens=0), 1) == 0


def test_t_pre_adds_what_the_new_tokens_attend_to() -> None:
    costs = Costs(DEPLOYMENT)
    assert costs.prefill_s(0, 100, 1) == PERF.prefill_s(100, 1)
    more_s = costs.prefill_s(4000, 100, 1) - PERF.prefill_s(100, 1)
    assert more_s == pytest.approx(2 * 4000 * 100 * 1e-9, rel=1e-6)


# --- slack judged ahead -----------------------------------------------------------------------------------------------


def ahead(request: Request, *workers: Worker) -> str:
    return route(request, *workers, slack="predicted", alpha=0.9).first


def test_the_prefill_worker_that_is_done_first_gets_a_task_that_is_in_time_there() -> None:
    """Whatever others felt in the last seconds: a worker that has become idle is used again at once."""
    assert ahead(later(100), worker("p0", ttft_s=0.1, queued=700), worker("p1", ttft_s=9.0), worker("d0")) == "p1"


def test_what_a_prefill_worker_runs_now_counts_as_its_queue() -> None:
    assert ahead(later(100), worker("p0", running=500), worker("p1", queued=400), worker("d0")) == "p1"


def test_local_where_only_that_keeps_the_ttft() -> None:
    assert ahead(later(100), worker("p0", queued=700), worker("d0", tbt_s=0.01)) == "p0"
    assert ahead(later(100), worker("p0", queued=800), worker("d0", tbt_s=0.01)) == "d0"


def test_by_default_half_of_the_ttft_is_left_for_what_the_estimate_does_not_know() -> None:
    assert route(later(100), worker("p0", queued=300), worker("d0", tbt_s=0.01), slack="predicted").first == "p0"
    assert route(later(100), worker("p0", queued=450), worker("d0", tbt_s=0.01), slack="predicted").first == "d0"


def test_a_pause_must_fit_into_the_itl_of_those_that_decode() -> None:
    """100 tokens pause for 0.1 s, which is 1 ms for each token of an answer of 100 and 20 ms of one of 5."""
    router = AmpdRouter(AmpdRouterSettings(alpha=0.9), DEPLOYMENT)
    workers = (worker("p0", queued=5000), worker("d0", tbt_s=0.08, running=1000))
    assert router.on_arrival(later(100), workers, 0.0).first == "d0"
    for _ in range(1000):
        router.on_ended(later(100), Outcome(Ending.FINISHED, 5))
    assert router.on_arrival(later(100), workers, 0.0).first == "p0"


def test_an_idle_decode_worker_has_nobody_to_pause() -> None:
    """However short answers are: with one token each, any pause spread over them would break the ITL."""
    router = AmpdRouter(AmpdRouterSettings(alpha=0.9), DEPLOYMENT)
    for _ in range(1000):
        router.on_ended(later(100), Outcome(Ending.FINISHED, 1))
    busy = worker("p0", queued=5000)
    assert router.on_arrival(later(100), (busy, worker("d0")), 0.0).first == "d0"
    assert router.on_arrival(later(100), (busy, worker("d0", running=1000)), 0.0).first == "p0"
    assert router.on_arrival(later(100), (busy, worker("d0", queued=100)), 0.0).first == "p0", "it decodes next"


def test_a_task_that_is_late_anyway_pauses_no_decodes() -> None:
    late = worker("p0", queued=9000), worker("d0", tbt_s=0.01, queued=2000)
    assert ahead(later(100), *late) == "p0"
    assert route(later(100), *late, alpha=0.0, beta=0.0).first == "d0"


def test_all_overloaded_and_local_off_take_the_shortest_remote_queue() -> None:
    workers = worker("p0", queued=9000), worker("p1", queued=8000), worker("d0", tbt_s=9.0)
    assert ahead(later(100), *workers) == "p1"
    assert route(later(100), *workers, slack="predicted", local=False).first == "p1"


# --- hosts that say little, fleets that hold little -----------------------------------------------------------------


def test_without_statistics_slack_is_judged_by_the_queue_and_by_t_dec() -> None:
    assert route(later(100), worker("p0", queued=800), worker("d0")).first == "p0"
    assert route(later(100), worker("p0", queued=1000), worker("d0")).first == "d0"
    crowd = worker("d0", queued=5000)
    crowd.load = replace(crowd.load, running_requests=90, running_tokens=9000.0)
    assert Costs(DEPLOYMENT).decode_s(crowd, 1) == pytest.approx(0.1)
    assert route(later(100), worker("p0", queued=1000), crowd).first == "p0"


def test_one_worker_does_all() -> None:
    for name in ("d0", "p0"):
        placement = route(Request("r", 0.0, 50), worker(name))
        assert (placement.first, placement.second, placement.split) == (name, name, 50)


def test_no_worker_is_said() -> None:
    with pytest.raises(ConfigError, match="no worker is ready"):
        route(Request("r", 0.0, 50))


def test_a_prompt_goes_where_it_fits_and_anywhere_when_it_fits_nowhere() -> None:
    small, big = worker("p0", capacity=1000), worker("p1", ttft_s=BUSY_S)
    tight, roomy = worker("d0", capacity=1000), worker("d1", running=50_000, tbt_s=BUSY_TBT_S, queued=50_000)
    placement = route(Request("r", 0.0, 2000), small, big, tight, roomy)
    assert (placement.first, placement.second) == ("p1", "d1")
    assert route(Request("r", 0.0, 10**6), small, big, tight, roomy).second == "d0"


def test_a_worker_whose_kv_capacity_is_not_known_yet_counts_as_the_mean_of_the_others() -> None:
    """The gateway knows it from the first load report on; until then it says 0."""
    known, unknown = worker("d0", running=60_000), worker("d1", running=50_000, capacity=0)
    assert route(Request("r", 0.0, 2000), known, unknown).second == "d1"
    unknown.load = worker("d1", running=70_000).load
    assert route(Request("r", 0.0, 2000), known, unknown).second == "d0"
    assert route(Request("r", 0.0, 2000), worker("p0", capacity=0), known).first == "p0"


def test_a_decode_worker_that_leaves_during_prefill_is_replaced() -> None:
    router = AmpdRouter(AmpdRouterSettings(), DEPLOYMENT)
    request = Request("r", 0.0, 50)
    placement = router.on_arrival(request, (worker("p0"), worker("d0")), 0.0)
    assert router.on_prefill_done(request, placement, (worker("p0"), worker("d1")), 1.0).second == "d1"


NUMBERS = st.none() | st.sampled_from([math.nan, math.inf, 0.0]) | st.floats(0, 1e7)
LOADS = st.builds(
    lambda *numbers: numbers,
    *[st.sampled_from([math.nan, math.inf, 0.0]) | st.floats(0, 1e7)] * 4,
    *[NUMBERS] * 6,
)


@pytest.mark.moderate
@given(
    st.lists(
        st.tuples(st.sampled_from("pd"), LOADS, st.sampled_from([0, 500, 10**5, 400_000])), min_size=1, max_size=8
    ),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 9)), min_size=1, max_size=6),
    st.sampled_from(["predicted", "windowed"]),
)
def test_every_round_is_placed_once_on_workers_that_exist_and_always_the_same(
    fleet: list[tuple[str, tuple[float, ...], int]], rounds: list[tuple[int, int, int]], slack: str
) -> None:
    """Whatever the loads are, NaN, infinite or missing."""
    workers = []
    for number, (kind, load, capacity) in enumerate(fleet):
        one = worker(f"{kind}{number}", capacity=capacity)
        one.load = WorkerLoad(one.id, *load)
        workers.append(one)
    by_id = {one.id: one for one in workers}
    answers = []
    for _ in range(2):
        router = AmpdRouter(AmpdRouterSettings(seed=7, slack=slack), DEPLOYMENT)  # type: ignore[arg-type]
        view = tuple(workers)
        answers.append([])
        for number, (new, history, bound) in enumerate(rounds):
            holder = workers[bound].id if bound < len(workers) else None
            request = Request(str(number), 0.0, history + new, None, history, "s", holder)
            placement = router.on_arrival(request, view, float(number))
            assert placement.split == request.prompt_tokens
            assert placement.second in by_id
            assert placement.first == placement.second or by_id[placement.first].role is Role.PREFILL
            if holder is not None and by_id[holder].role is Role.DECODE:
                assert placement.second == holder
            answers[-1].append(placement)
    assert answers[0] == answers[1]
