"""No kind of work starves, whatever the mix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.turns import Turns

LOCAL, PREFILL, DECODE = EngineRole.LOCAL, EngineRole.PREFILL, EngineRole.DECODE


def serve(turns: Turns, steps: int, chunks: dict[EngineRole, int], waiting: frozenset[EngineRole]) -> list[EngineRole]:
    """Run an engine on which `waiting` always wait, with prompts of so many chunks, and something always decodes."""
    ran: list[EngineRole] = []
    chunk: EngineRole | None = None
    left = 0
    for _ in range(steps):
        role = turns.order(chunk=chunk, waiting=waiting, decodes=True)[0]
        turns.tried(role)
        turns.ran(prefill=role is not DECODE)
        if role is not DECODE:
            left = (left or chunks[role]) - 1
            chunk = role if left else None
        ran.append(role)
    return ran


@given(
    st.integers(1, 5),
    st.fixed_dictionaries({LOCAL: st.integers(1, 6), PREFILL: st.integers(1, 6)}),
    st.sets(st.sampled_from([LOCAL, PREFILL])).map(frozenset),
)
def test_under_a_steady_mix_everyone_is_served(
    burst: int, chunks: dict[EngineRole, int], waiting: frozenset[EngineRole]
) -> None:
    ran = serve(Turns(burst), 200, chunks, waiting)
    longest = (max(chunks.values()) + 1) * 2  # a prompt of the other queue, each chunk with a decode step
    for role in waiting | {DECODE}:
        bound = burst if role is DECODE else longest
        gaps = "".join("x" if one is role else "." for one in ran[longest:]).split("x")
        assert max(map(len, gaps)) <= bound, (role, ran)


def test_prefill_goes_first_while_nobody_decodes() -> None:
    turns = Turns(1)
    for _ in range(3):
        order = turns.order(chunk=None, waiting=frozenset({LOCAL}), decodes=False)
        assert order == [LOCAL, DECODE]
        turns.ran(prefill=True)


def test_a_queue_without_room_does_not_block_the_other() -> None:
    """Prompts that do not fit give up their turn all the same."""
    turns = Turns(1)
    first = turns.order(chunk=None, waiting=frozenset({LOCAL, PREFILL}), decodes=True)[0]
    turns.tried(first)
    assert turns.order(chunk=None, waiting=frozenset({LOCAL, PREFILL}), decodes=True)[0] is not first


def test_a_prompt_in_chunks_keeps_the_turn_of_its_queue() -> None:
    turns = Turns(2)
    assert turns.order(chunk=PREFILL, waiting=frozenset({LOCAL, PREFILL}), decodes=True) == [PREFILL, DECODE]
