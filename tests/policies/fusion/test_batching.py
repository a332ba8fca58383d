"""The engine's queue: steps within the SLO, for what can be in time first, with a share for the oldest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pdplugins.contracts.bundle import Bundle
from pdplugins.testing import request
from pdplugins.types import BatchPlan, BatchScheduler, BatchView, Deployment, QueuedPrefill, Terms

Bundles = Callable[..., Bundle]


def scheduler(bundle: Bundles, **settings: Any) -> BatchScheduler:
    build = bundle(**settings).batch_scheduler
    assert build is not None
    return build()


def queued(name: str, tokens: int, arrival_s: float = 0.0) -> QueuedPrefill:
    return QueuedPrefill(request(name, tokens, arrival_s), tokens, arrival_s, 0)


def first(plan: BatchPlan) -> str:
    return next(iter(plan.prefill_tokens))


def test_a_prompt_that_cannot_be_in_time_lets_others_pass(bundle: Bundles) -> None:
    view = BatchView((queued("late", 4000, -9.0), queued("timely", 4000)), 10, 10_000)
    assert first(scheduler(bundle).next_batch(view, 0.0)) == "timely"


def test_an_engine_has_the_whole_objective(bundle: Bundles, made_for: Deployment) -> None:
    """The pool planned with 0.9 of it: what the rest is for must not be given up in the engine."""
    began_s = 0.95 * made_for.slo.ttft_s
    view = BatchView((queued("nearly late", 200, -began_s), queued("timely", 4000)), 10, 10_000)
    assert first(scheduler(bundle).next_batch(view, 0.0)) == "nearly late"


def test_the_earliest_deadline_is_first(bundle: Bundles) -> None:
    view = BatchView((queued("later", 500, 0.5), queued("sooner", 500)), 10, 10_000)
    assert first(scheduler(bundle).next_batch(view, 0.6)) == "sooner"


def test_a_request_has_its_own_deadline_and_worth(bundle: Bundles) -> None:
    """In turn: the earliest deadline, and of two of which one must be late the one that is worth more."""

    def of(name: str, tokens: int, terms: Terms) -> QueuedPrefill:
        return QueuedPrefill(request(name, tokens, terms=terms), tokens, 0.0, 0)

    hasty = BatchView((of("patient", 500, Terms(ttft_s=9.0)), of("hasty", 500, Terms(ttft_s=1.0))), 10, 10_000)
    assert first(scheduler(bundle).next_batch(hasty, 0.0)) == "hasty"
    urgent = BatchView((of("usual", 8000, Terms()), of("urgent", 9000, Terms(priority=1))), 10, 10_000)
    assert first(scheduler(bundle).next_batch(urgent, 0.0)) == "urgent"


def test_the_oldest_prompt_gets_its_share(bundle: Bundles) -> None:
    """A late prompt among timely ones that never end gets about a tenth of all tokens."""
    schedules, given, total = scheduler(bundle), 0, 0
    for step in range(300):
        now_s = step * 0.08
        view = BatchView((queued("late", 50_000, -9.0), queued(str(step), 5000, now_s)), 10, 10_000)
        tokens = schedules.next_batch(view, now_s).prefill_tokens
        given += tokens.get("late", 0)
        total += sum(tokens.values())
    assert 0.05 < given / total < 0.15


def test_without_a_share_it_gets_none(bundle: Bundles) -> None:
    schedules = scheduler(bundle, oldest_share=0.0)
    for step in range(50):
        view = BatchView((queued("late", 5000, -9.0), queued(str(step), 5000, step * 0.08)), 10, 10_000)
        assert "late" not in schedules.next_batch(view, step * 0.08).prefill_tokens


def test_a_step_keeps_the_share_of_the_slo(bundle: Bundles) -> None:
    """20 ms for the weights, and 0.1 ms a token, beside ten decodes."""
    view = BatchView((queued("a", 5000), queued("b", 5000)), 10, 10_000)
    small, large = (
        sum(scheduler(bundle, tpot_share=share).next_batch(view, 0.0).prefill_tokens.values()) for share in (0.5, 0.95)
    )
    assert 0 < small < large <= 0.95 * 0.08 / 1e-4


def test_what_can_be_in_time_is_found_behind_hundreds_that_cannot(bundle: Bundles) -> None:
    queue = tuple(queued(str(index), 100, -9.0) for index in range(300))
    plan = scheduler(bundle).next_batch(BatchView((*queue, queued("timely", 100)), 0, 0), 0.0)
    assert first(plan) == "timely"


def test_a_prompt_in_the_middle_of_its_chunks_keeps_its_place(bundle: Bundles) -> None:
    """It is cheaper now, and still the oldest."""
    schedules, left, served = scheduler(bundle), 3000, []
    while left > 0:
        view = BatchView((QueuedPrefill(request("first", 3000), left, 0.0, 3000 - left), queued("next", 2000)), 10, 10)
        plan = schedules.next_batch(view, 0.0)
        served.append(first(plan))
        left -= plan.prefill_tokens["first"]
    assert set(served) == {"first"}


def test_a_step_keeps_the_tightest_tpot_of_its_decodes(bundle: Bundles) -> None:
    """20 ms for the weights, and 0.1 ms a token: 40 ms leave less than 200 tokens, the deployment's 80 ms more."""
    queue = queued("a", 5000), queued("b", 5000)
    for waiting in (queue, queue[:1]):
        usual, strict = (
            sum(scheduler(bundle).next_batch(BatchView(waiting, 10, 10_000, own), 0.0).prefill_tokens.values())
            for own in ((), (0.04,))
        )
        assert 0 < strict < 200 < usual
