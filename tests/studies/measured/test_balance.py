"""When TensorRT-LLM starts prompts with data-parallel attention."""

from __future__ import annotations

from pdplugins.contracts.batching import BatchView, QueuedPrefill
from pdplugins.contracts.request import Request
from pdplugins.studies.measured.balance import TIMEOUT_STEPS, AttentionBalance


def view(*clients: str, decodes: int, tokens: int = 100) -> BatchView:
    queue = [QueuedPrefill(Request(f"r{name}", 0.0, tokens, session=name), tokens, 0.0) for name in clients]
    return BatchView(tuple(queue), decodes, 0)


def started(scheduler: AttentionBalance, seen: BatchView) -> set[str]:
    return set(scheduler.next_batch(seen, 0.0).prefill_tokens)


def test_prompts_start_when_every_group_has_one() -> None:
    scheduler = AttentionBalance(2, 250)
    assert started(scheduler, view("a", "b", decodes=2)) == {"ra", "rb"}
    assert started(scheduler, view("a", decodes=2)) == set()
    assert started(scheduler, view("a", "b", decodes=2)) == {"ra", "rb"}


def test_a_prompt_waits_no_longer_than_the_timeout() -> None:
    scheduler = AttentionBalance(2, 250)
    waits = [started(scheduler, view("a", decodes=2)) for _ in range(TIMEOUT_STEPS + 2)]
    assert waits == [*([set()] * TIMEOUT_STEPS), {"ra"}, set()]


def test_a_step_without_prompts_is_no_wait() -> None:
    scheduler = AttentionBalance(2, 250)
    for _ in range(TIMEOUT_STEPS):
        assert started(scheduler, view(decodes=2)) == set()
    assert started(scheduler, view("a", decodes=2)) == set()


def test_a_group_without_decodes_lets_prompts_start() -> None:
    assert started(AttentionBalance(2, 250), view("a", decodes=1)) == {"ra"}


def test_a_group_takes_whole_prompts_up_to_its_tokens() -> None:
    four = view("a", "b", "c", "d", decodes=0, tokens=120)
    assert started(AttentionBalance(2, 250), four) == {"ra", "rb", "rc", "rd"}
    assert started(AttentionBalance(2, 200), four) == {"ra", "rb"}
    assert AttentionBalance(1, 200).next_batch(four, 0.0).prefill_tokens == {"ra": 120}
