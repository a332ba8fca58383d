"""What the router makes of the reports of engines, of model cards, and of the requests of Dynamo's frontend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.gateway.errors import GatewayError
from pdplugins.hosts.dynamo.router import workers as module
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.places import other, places
from pdplugins.hosts.dynamo.router.workers import DynamoWorker
from pdplugins.types import Role

CARD = {"kv_cache_block_size": 64, "runtime_config": {"total_kv_blocks": 100}}


def worker(*phases: Role) -> DynamoWorker:
    one = DynamoWorker("w", Role.DECODE, 1, dict.fromkeys(phases or (Role.DECODE,)))
    one.introduce(CARD, 2)
    return one


def step(number: int, *, prefills: int = 0, prefill_tokens: int = 0, decodes: int = 0, queued: int = 0) -> Any:
    """What an engine reports of one step, and the bytes that stand for it."""
    running = SimpleNamespace(
        num_prefill_requests=prefills, sum_prefill_tokens=prefill_tokens, num_decode_requests=decodes,
        sum_decode_kv_tokens=100 * decodes,
    )  # fmt: skip
    waiting = SimpleNamespace(
        num_prefill_requests=queued, sum_prefill_tokens=10 * queued, num_decode_requests=0, sum_decode_kv_tokens=0
    )
    return (bytes([number]),), lambda _: SimpleNamespace(queued_requests=waiting, scheduled_requests=running)


def test_what_engines_report_beyond_our_requests_is_of_others() -> None:
    one = worker()
    one.report(*step(1, decodes=3, queued=2))
    load = one.view.load
    assert (load.running_requests, load.queued_requests, load.queued_tokens) == (3, 2, 20)
    assert one.view.free_kv_tokens == 6400 - 300
    one.enters()
    load.decode_starts(100)
    one.report(*step(2, decodes=1))
    assert (load.running_requests, load.queued_requests) == (1, 0)


def test_a_report_that_is_older_than_our_books_makes_no_others() -> None:
    """The engine still reports a request that has just ended here."""
    one = worker()
    one.enters()
    one.view.load.decode_starts(100)
    one.report(*step(1, decodes=1))
    one.view.load.decode_ends(100)
    one.leaves()
    for number in (2, 3):
        one.report(*step(number, decodes=1))
        assert one.view.load.running_requests == 0
    one.report(*step(4, decodes=1))
    assert one.view.load.running_requests == 1, "by now it is somebody else's"


def test_an_engine_that_reports_nothing_new_is_idle_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    one = worker()
    reports = step(1, decodes=3)
    one.report(*reports)
    one.report(*reports)
    assert one.view.load.running_requests == 3
    now_s += module.SILENT_S
    one.report(*reports)
    assert one.view.load.running_requests == 0
    assert one.view.free_kv_tokens == 6400


def test_the_tokens_of_a_step_are_told_by_phase() -> None:
    one = worker()
    assert one.view.load.prefill_tokens is None, "no engine has reported"
    one.report(*step(1, prefills=1, prefill_tokens=70))
    assert one.view.load.prefill_tokens == 70


def test_a_worker_can_do_what_it_serves() -> None:
    one, both = worker().view.capabilities, worker(*Role).view.capabilities
    assert one is not None
    assert both is not None
    assert (one.phases, one.alone, one.splits) == ({Role.DECODE}, False, False)
    assert (both.phases, both.alone, both.splits) == (set(Role), True, False)


def test_endpoints_of_one_process_have_different_names() -> None:
    """Dynamo tells them apart by nothing else."""
    for role, phase in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        mine = next(place for place in places(both=True) if place.role is role)
        assert mine.name != other(phase).name
    assert {place.role for place in places(both=False)} == set(Role)


def call(**fields: Any) -> PreprocessedCall:
    body = {"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": 10, "min_tokens": 4, "ignore_eos": True}}
    return PreprocessedCall(body | fields, SimpleNamespace(id=lambda: "r1"))


def test_a_request_says_its_lengths_its_session_and_what_it_allows() -> None:
    plain = call()
    assert (plain.prompt, plain.max_tokens, plain.pinned_tokens, plain.rid) == ([1, 2, 3], 10, 10, "r1")
    assert plain.session is None
    named = call(agent_context={"session_id": "mine"}).session
    assert named == call(agent_context={"session_id": "mine"}).session
    assert named not in {None, "mine", call(agent_context={"session_id": "yours"}).session}
    assert call(stop_conditions={"max_tokens": 5}).pinned_tokens is None
    assert plain.continuable
    assert not call(sampling_options={"n": 2}).continuable
    assert not call(sampling_options={"guided_decoding": {"json": {}}}).continuable


def test_the_rest_of_an_answer_is_asked_with_the_limits_that_are_left() -> None:
    rest = call().continued([1, 2, 3, 9, 9, 9], 3)
    assert rest["token_ids"] == [1, 2, 3, 9, 9, 9]
    assert rest["stop_conditions"] == {"max_tokens": 7, "min_tokens": 1, "ignore_eos": True}
    assert call().prefill_only()["stop_conditions"] == {"max_tokens": 1, "min_tokens": None, "ignore_eos": True}
    assert call(stop_conditions=None).continued([1], 1)["stop_conditions"] == {"max_tokens": None, "min_tokens": None}


@pytest.mark.parametrize("body", [None, [], {}, {"token_ids": None}, {"token_ids": []}, {"token_ids": "abc"}])
def test_what_has_no_token_ids_is_refused(body: Any) -> None:
    with pytest.raises(GatewayError, match="no token ids"):
        PreprocessedCall(body, SimpleNamespace(id=lambda: "r1"))


@pytest.mark.parametrize("odd", ["x", -1, 1.5, True, None, 2**40, [1]])
def test_an_odd_limit_is_none(odd: Any) -> None:
    assert call(stop_conditions={"max_tokens": odd}).max_tokens is None
