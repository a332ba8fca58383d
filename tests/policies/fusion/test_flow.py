"""The flow policy: late binding, deadlines, the share of the oldest, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.flow import FusionFlow
from pdplugins.testing import Worker, fleet, request, worker
from pdplugins.types import Capabilities, Ending, FlowDecision, Go, Hold, Outcome, Refuse, Role, Terms, Waiting

Cores = Callable[..., Core]


def arrive(
    flow: FusionFlow, name: str, tokens: int, now_s: float = 0.0, ttft_s: float = 2.0, history_tokens: int = 0
) -> None:
    asked = request(name, tokens, now_s, history_tokens=history_tokens)
    flow.on_arrival(Waiting(asked, now_s, now_s + ttft_s), now_s)


def ask(flow: FusionFlow, workers: tuple[Worker, ...], now_s: float = 0.0) -> list[FlowDecision]:
    """Ask until the policy holds."""
    decisions: list[FlowDecision] = []
    while not isinstance(decision := flow.next(workers, now_s), Hold):
        decisions.append(decision)
    return [*decisions, decision]


def gone(decisions: list[FlowDecision]) -> list[str]:
    """Return who goes on, in order."""
    return [decision.request_id for decision in decisions if isinstance(decision, Go)]


def busy(count: int, **load: float) -> tuple[Worker, ...]:
    """Return decode workers that are alike."""
    return tuple(worker(f"d{index}", **{"queued_tokens": 50_000.0, **load}) for index in range(count))


def test_a_request_waits_here_until_a_worker_can_start_it(core: Cores) -> None:
    flow = FusionFlow(core())
    for name in "ab":
        arrive(flow, name, 1000)
    assert gone(ask(flow, busy(2))) == ["a"], "the first one goes on, as nothing else would wake the host"
    assert isinstance(flow.next(busy(2), 0.0), Hold)
    assert gone([flow.next((*busy(1), *fleet(0, 1)), 0.0)]) == ["b"]


def test_a_hold_ends_by_itself(core: Cores) -> None:
    """Loads change without a word to the policy, so it asks to be asked again."""
    flow = FusionFlow(core())
    for name in "ab":
        arrive(flow, name, 1000)
    held = ask(flow, busy(1), 5.0)[-1]
    assert isinstance(held, Hold)
    assert held.until_s is not None
    assert 5.0 < held.until_s < 6.0


def test_the_earliest_deadline_goes_first(core: Cores) -> None:
    """A request may have a TTFT objective of its own."""
    flow = FusionFlow(core())
    arrive(flow, "patient", 1000, ttft_s=60.0)
    arrive(flow, "hasty", 1000, ttft_s=1.0)
    assert gone(ask(flow, fleet(0, 4))) == ["hasty", "patient"]


def test_a_prompt_that_would_make_others_late_goes_last(core: Cores) -> None:
    """One worker has 1.8 s: 15,000 tokens alone, or all the others."""
    flow = FusionFlow(core(oldest_share=0.0))
    arrive(flow, "large", 12_000)
    for index in range(12):
        arrive(flow, str(index), 800)
    order = [decision.request_id for decision in ask(flow, fleet(0, 1)) if isinstance(decision, Go)]
    assert order[-1] == "large"
    assert len(order) == 13


def test_a_full_pool_holds_however_idle_its_prefill_is(core: Cores) -> None:
    """Places to decode run out before prefill does: what went on without one would wait where nobody can reorder it."""
    shared = core(prior_tokens=1000)
    flow, workers = FusionFlow(shared), fleet(1, 1, kv_capacity_tokens=20_000)
    for index in range(40):
        arrive(flow, str(index), 500)
    gone = [decision for decision in ask(flow, workers) if isinstance(decision, Go)]
    assert 0 < len(gone) < 40
    flow.on_ended(request("0", 500), Outcome(Ending.FINISHED, 10))
    assert isinstance(flow.next(workers, 0.0), Go)


@pytest.mark.parametrize(
    ("workers", "tokens"),
    [
        (fleet(0, 8, kv_capacity_tokens=10_000), 9_500),
        (fleet(0, 8, kv_capacity_tokens=0), 1_000),
        (fleet(2, 0), 1_000),
    ],
    ids=["one long context each", "KV cache that is not told", "no decode label"],
)
def test_each_worker_has_a_place_to_decode(core: Cores, workers: tuple[Worker, ...], tokens: int) -> None:
    """Else a whole pool would serve one request at a time."""
    flow = FusionFlow(core())
    for index in range(8):
        arrive(flow, str(index), tokens)
    assert len(gone(ask(flow, workers))) >= len(workers)


def test_more_may_be_in_service_than_decode_where_prefill_takes_long(core: Cores) -> None:
    """Little's law: those that are prefilled take no place, and by the time that they decode others have ended."""
    workers, most = fleet(1, 1, kv_capacity_tokens=200_000), {}
    for prompt, osl in ((100, 2000.0), (2000, 100.0)):
        shared = core()
        shared.lengths.began(request("r", prompt))
        shared.lengths.osl = osl
        within = shared.costs.most_decodes(shared.context, shared.deployment.max_batch)
        places = min(within, int(0.85 * 200_000 / shared.context))
        assert shared.ahead_s == pytest.approx(2 * shared.costs.step_s), "two steps, where the TTFT is long"
        before_s = shared.ahead_s + shared.costs.share_s(prompt)
        most[prompt] = shared.most_in_service(workers) / places
        assert most[prompt] == pytest.approx(1 + before_s / (osl * shared.costs.step_s), abs=1 / places)
    assert most[2000] > most[100] + 0.03


@pytest.mark.parametrize("history_tokens", [0, 1900])
def test_a_history_takes_a_place_to_decode_as_large_as_any_context(core: Cores, history_tokens: int) -> None:
    """17,000 tokens may be planned with: 8 requests of 2,000 tokens, whether these are computed here or not."""
    flow = FusionFlow(core(prior_tokens=100))
    for index in range(20):
        arrive(flow, str(index), 2000, history_tokens=history_tokens)
    assert len(gone(ask(flow, fleet(1, 1, kv_capacity_tokens=20_000)))) == 8


def test_a_decode_worker_at_its_tpot_limit_starts_nothing(core: Cores) -> None:
    flow = FusionFlow(core())
    for name in "ab":
        arrive(flow, name, 100)
    full = busy(2, queued_tokens=0.0, decode_requests=400.0, decode_tokens=800_000.0)
    assert len(ask(flow, full)) == 2


@pytest.mark.parametrize(("decodes", "prefill_workers", "goes"), [(100.0, 1, False), (100.0, 0, True), (4.0, 1, True)])
def test_a_prompt_does_not_join_a_queue_because_a_worker_is_free_on_which_it_would_be_late(
    core: Cores, decodes: float, prefill_workers: int, goes: bool
) -> None:
    """Beside many decodes its prefill takes longer than its TTFT. So it would join the prefill-only worker's queue."""
    flow = FusionFlow(core(tpot_share=0.5))
    decoding = busy(1, queued_tokens=0.0, decode_requests=decodes, decode_tokens=decodes * 1000)
    queued = tuple(worker(f"p{index}", Role.PREFILL, queued_tokens=50_000.0) for index in range(prefill_workers))
    for name in "ab":
        arrive(flow, name, 5000)
    assert gone(ask(flow, (*queued, *busy(1)))) == ["a"], "the first one goes on, as nothing else would wake the host"
    assert isinstance(flow.next((*queued, *decoding), 0.0), Go) == goes


@pytest.mark.parametrize("overload", ["wait", "refuse"])
def test_the_operator_chooses_what_happens_beyond_capacity(core: Cores, overload: str) -> None:
    flow = FusionFlow(core(overload=overload))
    for index in range(10):
        arrive(flow, str(index), 8000)
    refused = [decision for decision in ask(flow, fleet(0, 1)) if isinstance(decision, Refuse)]
    assert bool(refused) == (overload == "refuse")
    assert all(one.retry_after_s >= 1.0 and "in time" in one.reason for one in refused)


def test_after_a_lull_the_speed_of_before_it_refuses_nobody(core: Cores) -> None:
    """Hosts ask only while something waits, so the policy knows the speed of the last request that went on."""
    flow = FusionFlow(core(overload="refuse"))
    arrive(flow, "a", 1000)
    assert gone(ask(flow, fleet(0, 1))) == ["a"]
    flow.on_ended(request("a", 1000), Outcome(Ending.FINISHED, 10))
    flow._speed = 0.05  # that of a pool full of decodes
    arrive(flow, "b", 8000, 600.0)
    assert gone(ask(flow, fleet(0, 1), 600.0)) == ["b"]


def test_those_that_come_together_first_are_judged_by_all_workers(core: Cores) -> None:
    flow = FusionFlow(core(overload="refuse"))
    for index in range(6):
        arrive(flow, str(index), 8000)
    assert not any(isinstance(decision, Refuse) for decision in ask(flow, fleet(0, 8)))


def test_a_decode_server_is_no_place_for_a_prompt(core: Cores) -> None:
    """Beside stock servers prompts wait here for those that prefill, where they are still in order."""
    flow = FusionFlow(core())
    stock = Capabilities(frozenset({Role.DECODE}), alone=False)
    decoding = tuple(replace(one, capabilities=stock) for one in busy(3, queued_tokens=0.0))
    prefill = worker("p0", Role.PREFILL, queued_tokens=50_000.0)
    for name in "abc":
        arrive(flow, name, 1000)
    assert gone(ask(flow, (prefill, *decoding))) == ["a"], "the first one goes on, as nothing else would wake the host"
    assert flow.signals["speed_workers"] <= 1.0


def test_nothing_that_can_be_in_time_is_refused(core: Cores) -> None:
    flow = FusionFlow(core(overload="refuse"))
    for index in range(4):
        arrive(flow, str(index), 1000)
    assert all(isinstance(decision, Go) for decision in ask(flow, fleet(0, 2))[:-1])


def test_the_longest_wait_is_told(core: Cores) -> None:
    flow = FusionFlow(core())
    arrive(flow, "a", 1000)
    flow.next(fleet(0, 1), 7.5)
    assert flow.signals["longest_wait_s"] == 7.5


def test_a_large_pool_is_measured_by_a_part_of_it(core: Cores) -> None:
    """The speed of 100 idle workers is 100, whichever 16 of them are looked at."""
    flow = FusionFlow(core())
    arrive(flow, "a", 1000)
    flow.next(fleet(0, 100), 0.0)
    assert flow.signals["speed_workers"] == pytest.approx(100.0)


def test_a_decision_says_why_this_one_and_why_now(core: Cores) -> None:
    flow = FusionFlow(core(oldest_share=0.0))
    for name, tokens in (("timely", 1000), ("large", 30_000)):
        arrive(flow, name, tokens)
    reasons = [one.reason for one in ask(flow, fleet(0, 4)) if isinstance(one, Go)]
    assert "due in 1.80 s" in reasons[0]
    assert "1 of 2 are late" in reasons[0]
    assert "late: in time it would make others late" in reasons[1]
    arrive(flow, "old", 1000)
    (decision,) = ask(flow, fleet(0, 4), 9.0)[:-1]
    assert isinstance(decision, Go)
    assert "late: its deadline passed 7.20 s ago" in decision.reason


def test_the_turn_of_the_oldest_says_so(core: Cores) -> None:
    flow = FusionFlow(core(oldest_share=0.5))
    for name in ("old", *map(str, range(8))):
        arrive(flow, name, 30_000 if name == "old" else 2000)
    reasons = [one.reason for one in ask(flow, fleet(0, 4), 1.0) if isinstance(one, Go)]
    assert any("turn of the oldest, which has waited 1.00 s" in reason for reason in reasons)


def test_what_a_strict_tpot_leaves_of_a_step_is_what_a_worker_can_start(core: Cores) -> None:
    """600 tokens wait, which two steps of 76 ms prefill, and two of 28 ms do not: the weights alone take 20."""
    shared = core()
    flow, workers = FusionFlow(shared), fleet(0, 1, decode_requests=10.0, decode_tokens=10_000.0, queued_tokens=600.0)
    for name in "abc":
        arrive(flow, name, 500)
    assert gone([flow.next(workers, 0.0), flow.next(workers, 0.0)]) == ["a", "b"]
    shared.residents.placed(request("strict", 500, terms=Terms(tpot_s=0.03)), "d0")
    assert isinstance(flow.next(workers, 0.0), Hold)
    shared.residents.left("strict")
    assert gone([flow.next(workers, 0.0)]) == ["c"]


def test_a_worker_that_only_prefills_may_have_a_full_step_waiting(core: Cores) -> None:
    shared = core(ahead_steps=0.01)
    chunk = shared.costs.chunk

    def goes_on(queued_tokens: float) -> list[str]:
        flow = FusionFlow(shared)
        for name in "ab":
            arrive(flow, name, 1000)
        prefill = worker("p0", Role.PREFILL, queued_tokens=queued_tokens)
        return gone(ask(flow, (prefill, *busy(1))))

    assert goes_on(chunk - 1.0) == ["a", "b"]
    assert goes_on(chunk + 1.0) == ["a"], "the first one goes on, as nothing else would wake the host"


def test_a_deadline_counts_the_step_that_may_wait_on_a_worker_that_only_prefills(core: Cores) -> None:
    shared = core(ahead_steps=0.01)
    step_s = shared.costs.chunk / shared.alone
    flow = FusionFlow(shared)
    arrive(flow, "soon", 100, ttft_s=step_s)
    arrive(flow, "later", 100, ttft_s=10.0)
    assert gone([flow.next(fleet(1, 1), 0.0)]) == ["later"]
    assert gone([flow.next(fleet(0, 1), 0.0)]) == ["soon"]


def test_a_slow_worker_that_only_prefills_has_no_more_time_of_work_waiting(core: Cores) -> None:
    """One that has just changed its role still decodes: what a full step is for others takes it far longer."""
    shared = core(ahead_steps=0.01)

    def goes_on(**load: float) -> list[str]:
        flow = FusionFlow(shared)
        for name in "ab":
            arrive(flow, name, 1000)
        prefill = worker("p0", Role.PREFILL, queued_tokens=shared.costs.chunk - 1.0, **load)
        return gone(ask(flow, (prefill, *busy(1))))

    assert goes_on() == ["a", "b"]
    assert goes_on(decode_requests=8.0, decode_tokens=8000.0) == ["a"]


def test_a_prompt_that_no_kv_cache_holds_takes_nobodys_turn(core: Cores) -> None:
    """Its host refuses it, so it neither waits nor counts: not as work, not in a place, and not in the mean prompt."""
    shared = core(oldest_share=0.5)
    flow, workers = FusionFlow(shared), fleet(0, 2, kv_capacity_tokens=20_000)
    arrive(flow, "a", 1000)
    assert gone(ask(flow, workers)) == ["a"]
    full = busy(2, kv_capacity_tokens=20_000)
    for name, tokens in (("b", 19_000), ("huge", 20_000), ("gone", 20_000), ("c", 1000)):
        arrive(flow, name, tokens)
    flow.on_left("gone")
    assert gone(ask(flow, full)) == ["huge"]
    assert gone(ask(flow, fleet(0, 2, kv_capacity_tokens=20_000))) == ["c", "b"]
    assert shared.lengths.isl == pytest.approx((1000 + 1000 + 19_000) / 3)


def test_a_kv_cache_whose_size_is_not_told_may_hold_any_prompt(core: Cores) -> None:
    flow = FusionFlow(core())
    workers = (worker("d0", queued_tokens=50_000.0), worker("d1", queued_tokens=50_000.0, kv_capacity_tokens=0))
    for name in ("a", "huge"):
        arrive(flow, name, 10_000_000 if name == "huge" else 1000)
        decisions = ask(flow, workers)
    assert gone(decisions) == []
