"""What 0.5.16 lacks: KV cache of an aborted transfer is held for as long as it may still be written to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.sglang.older import HOLD_S, AbortedTransfers, stop_before_length


class Queue:
    """Takes out what it is asked about and has failed."""

    def __init__(self, *rids: str) -> None:
        self.queue = [
            SimpleNamespace(req=SimpleNamespace(rid=rid), kv_receiver=SimpleNamespace(abort_notified=False))
            for rid in rids
        ]

    def abort(self, rid: str) -> None:
        for waiting in self.queue:
            waiting.kv_receiver.abort_notified |= waiting.req.rid == rid

    def pop(self, rids: list[str] | None = None) -> list[str]:
        gone = [
            waiting
            for waiting in self.queue
            if waiting.kv_receiver.abort_notified and (rids is None or waiting.req.rid in rids)
        ]
        self.queue = [waiting for waiting in self.queue if waiting not in gone]
        return [waiting.req.rid for waiting in gone]


def test_what_was_aborted_is_let_go_of_when_nobody_writes_it_any_more() -> None:
    times: list[float] = [0.0]
    held, queue = AbortedTransfers(lambda: times[0]), Queue("a", "b", "c")

    def pop(rids: list[str] | None = None) -> Any:
        return held.pop(Queue.pop, queue, rids)

    queue.abort("a")
    assert pop() == []
    times[0] = HOLD_S / 2
    queue.abort("b")
    assert pop(["a", "c"]) == []
    times[0] = HOLD_S
    assert pop() == ["a"]
    times[0] = 2 * HOLD_S
    assert pop(["c"]) == []
    assert pop() == ["b"]


def test_without_an_abort_all_is_as_ever() -> None:
    asked: list[Any] = []
    AbortedTransfers().pop(lambda _, rids: asked.append(rids), Queue("a"), None)
    AbortedTransfers().pop(lambda _, rids: asked.append(rids), SimpleNamespace(queue=[]))
    assert asked == [None, None]


def test_a_receiver_that_tells_nobody_of_an_abort_is_not_held() -> None:
    queue = SimpleNamespace(queue=[SimpleNamespace(req=SimpleNamespace(rid="a"), kv_receiver=object())])
    assert AbortedTransfers().pop(lambda _, rids: rids is None, queue)


@pytest.mark.parametrize(
    ("ids", "most", "finished", "ends"),
    [
        ([5, 6, 2], 3, False, "eos"),
        ([5, 6, 7], 3, False, "length"),
        ([5, 2, 7], 3, False, "length"),
        ([5, 2], 3, False, "stock"),
        ([5, 6, 2], 3, True, "stock"),
    ],
)
def test_the_end_of_an_answer_counts_before_the_length_of_its_part(
    ids: list[int], most: int, finished: bool, ends: str
) -> None:
    """0.5.16 looks at the length first, and the gateway would let another server go on behind the end."""
    said: list[str] = []

    def check(new: list[int]) -> bool:
        said.extend(["eos"] * (2 in new))
        return 2 in new

    request = SimpleNamespace(
        output_ids=ids,
        sampling_params=SimpleNamespace(max_new_tokens=most),
        finished=lambda: finished,
        to_finish=None,
        _check_token_based_finish=check,
    )

    def stock(request: Any, new_accepted_len: int) -> None:
        said.append("length" if len(request.output_ids) >= most and not finished else "stock")

    stop_before_length(stock, request)
    assert said == [ends]
