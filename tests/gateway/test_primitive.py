"""What a placement comes to on workers of any kind: a pure function, without a gateway."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.gateway.books import WorkerBook
from pdplugins.gateway.engine import ServerKind
from pdplugins.gateway.primitive import (
    Deviation,
    Execution,
    NobodyServesError,
    Primitive,
    can_serve,
    decodes,
    prefills,
    resolve,
)
from pdplugins.gateway.primitive import alone as serves_alone
from pdplugins.types import Placement, Role


@dataclass(frozen=True)
class Call:
    max_tokens: int | None = 50
    one_answer: bool = True
    splits_in_decode: bool = True
    whole: str | None = None
    pushes: bool = True


def workers(*kinds: str) -> tuple[WorkerBook, ...]:
    books = tuple(WorkerBook(f"w{number}", Role.PREFILL, 1000) for number in range(len(kinds)))
    for book, kind in zip(books, kinds, strict=True):
        book.capabilities = ServerKind(kind).capabilities
    return books


def resolved(
    placement: Placement, *kinds: str, prompt: int = 100, call: Call = Call()
) -> tuple[Execution, Deviation | None]:
    ready = workers(*kinds)
    return resolve(placement, prompt, call, {worker.id: worker for worker in ready}, ready)


@pytest.mark.parametrize(
    ("placement", "primitive"),
    [
        (Placement("w0", "w0", 100), Primitive.LOCAL),
        (Placement("w0", "w1", 100), Primitive.PAIR),
        (Placement("w0", "w1", 40), Primitive.PUSH),
        (Placement("w0", "w1", 120), Primitive.HEAD),
        (Placement("w0", None, 100), Primitive.WARM),
        (Placement("w0", "w1", 0), Primitive.LOCAL),
        (Placement("w0", "w1", 150), Primitive.LOCAL),
    ],
)
def test_dual_role_workers_do_what_the_router_says(placement: Placement, primitive: Primitive) -> None:
    execution, deviation = resolved(placement, "dual", "dual")
    assert (execution.primitive, deviation) == (primitive, None)
    if primitive is Primitive.LOCAL:
        assert execution.first == ("w1" if placement.split == 0 else "w0")


@pytest.mark.parametrize(
    ("placement", "kinds", "execution", "deviation"),
    [
        (Placement("w0", "w0", 100), ("prefill", "decode"), ("w0", "w1"), Deviation.LOCAL),
        (Placement("w1", "w1", 100), ("prefill", "decode"), ("w0", "w1"), Deviation.LOCAL),
        (Placement("w1", "w0", 100), ("prefill", "decode"), ("w0", "w1"), Deviation.ROLES),
        (Placement("w0", "w1", 40), ("prefill", "decode"), ("w0", "w1"), Deviation.STOCK_SPLIT),
        (Placement("w0", None, 100), ("prefill", "decode"), ("w0", None), Deviation.OPEN_SECOND),
        (Placement("w0", "w1", 100), ("unified", "unified"), ("w1", "w1"), Deviation.ROLES),
        (Placement("w0", "w1", 100), ("dual", "unified"), ("w1", "w1"), Deviation.ROLES),
    ],
)
def test_stock_servers_do_what_is_nearest(
    placement: Placement, kinds: tuple[str, ...], execution: tuple[str, str | None], deviation: Deviation
) -> None:
    found, why = resolved(placement, *kinds)
    assert ((found.first, found.second), why) == (execution, deviation)


def test_a_request_that_cannot_be_split_is_not() -> None:
    pair = Execution("w0", "w1", 100, 100)
    batch = resolved(Placement("w0", "w1", 40), "dual", "dual", call=Call(one_answer=False))
    assert batch == (pair, Deviation.SEVERAL_ANSWERS)
    chat = resolved(Placement("w0", "w1", 120), "dual", "dual", call=Call(splits_in_decode=False))
    assert chat == (pair, Deviation.DECODE_SPLIT)
    assert resolved(Placement("w0", "w1", 40), "dual", "dual", call=Call(splits_in_decode=False))[1] is None
    salted = Call(pushes=False)
    assert resolved(Placement("w0", "w1", 40), "dual", "dual", call=salted) == (pair, Deviation.KEPT_APART)
    assert resolved(Placement("w0", "w1", 120), "dual", "dual", call=salted)[1] is None


@pytest.mark.parametrize("second", ["w0", "w1", None])
@pytest.mark.parametrize("split", [0, 40, 100, 120, 150])
def test_a_request_for_one_worker_is_placed_on_one(second: str | None, split: int) -> None:
    placement, call = Placement("w0", second, split), Call(whole="n")
    found, _ = resolved(placement, "dual", "dual", call=call)
    assert found.primitive is Primitive.LOCAL
    assert resolved(placement, "prefill", "dual", call=call)[0] == Execution.local("w1", 100)
    assert resolved(placement, "prefill", "decode", "unified", call=call)[0] == Execution.local("w2", 100)
    assert resolved(Placement("w0", "w1", 100), "dual", "dual", call=call)[1] is Deviation.WHOLE
    with pytest.raises(NobodyServesError):
        resolved(placement, "prefill", "decode", call=call)


def test_workers_that_cannot_serve_together_are_an_error() -> None:
    with pytest.raises(NobodyServesError):
        resolved(Placement("w0", "w1", 100), "prefill", "prefill")


def test_the_least_loaded_of_the_others_is_taken() -> None:
    ready = workers("prefill", "decode", "decode", "decode")
    for worker in ready[1:3]:
        worker.load.decode_starts(10)
    placement = Placement("w0", "w0", 100)
    assert resolve(placement, 100, Call(), {w.id: w for w in ready}, ready)[0].second == "w3"


def test_whole_answers_that_are_not_there_yet_are_load() -> None:
    """They are queued, not running, until they come; without them one of several unified servers would get all."""
    ready = workers("unified", "unified")
    placement = Placement("w0", "w1", 100)
    places = []
    for _ in range(4):
        execution, _ = resolve(placement, 100, Call(), {w.id: w for w in ready}, ready)
        places.append(execution.first)
        next(w for w in ready if w.id == execution.first).load.prefill_starts(100, 0)
    assert places == ["w1", "w0", "w1", "w0"]


@given(
    kinds=st.lists(st.sampled_from(list(ServerKind)), min_size=1, max_size=4),
    first=st.integers(0, 3),
    second=st.none() | st.integers(0, 3),
    split=st.integers(-5, 300),
    most=st.none() | st.integers(1, 100),
    flags=st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, "n"])),
)
def test_what_is_resolved_can_always_be_done(
    kinds: list[str], first: int, second: int | None, split: int, most: int | None, flags: tuple[bool, bool, str | None]
) -> None:
    ready = workers(*kinds)
    by_id = {worker.id: worker for worker in ready}
    name = [worker.id for worker in ready]
    placement = Placement(name[first % len(name)], None if second is None else name[second % len(name)], split)
    try:
        execution, deviation = resolve(placement, 100, Call(most, *flags), by_id, ready)
    except NobodyServesError:
        assert not any(map(serves_alone, ready))
        return
    if flags[2] is not None:
        assert execution.primitive is Primitive.LOCAL
    one, other = by_id[execution.first], by_id.get(execution.second or "")
    assert can_serve(ready) or deviation is Deviation.OPEN_SECOND
    if execution.primitive is Primitive.LOCAL:
        assert serves_alone(one)
    elif execution.primitive is Primitive.WARM:
        assert prefills(one)
    else:
        assert other is not None
        assert prefills(one)
        assert decodes(other)
    if execution.primitive in (Primitive.PUSH, Primitive.HEAD):
        assert all(worker.capabilities is not None and worker.capabilities.splits for worker in (one, other))  # type: ignore[union-attr]


def test_a_worker_that_only_prefills_may_do_so_before_it_is_known_who_decodes() -> None:
    """Where the host's workers hand over when they are done; SGLang's need their peer before they begin."""
    ready = workers("prefill", "decode")
    by_id = {worker.id: worker for worker in ready}
    late, deviation = resolve(Placement("w0", None, 100), 100, Call(), by_id, ready, late=True)
    assert (late.primitive, deviation) == (Primitive.WARM, None)
    early, deviation = resolve(Placement("w0", None, 100), 100, Call(), by_id, ready)
    assert (early.primitive, deviation) == (Primitive.WARM, Deviation.OPEN_SECOND)
