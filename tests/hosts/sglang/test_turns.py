"""Whose turn it is; test_fairness.py shows that nothing starves."""

from __future__ import annotations

from pdplugins.hosts.sglang.roles import EngineRole
from pdplugins.hosts.sglang.turns import Turns

LOCAL, PREFILL, DECODE = EngineRole.LOCAL, EngineRole.PREFILL, EngineRole.DECODE


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
