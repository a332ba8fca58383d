"""What the router makes of the reports of engines, of model cards, and of the requests of Dynamo's frontend."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.gateway import workers as shared
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.metrics import GatewayMetrics
from pdplugins.hosts.dynamo.router import workers as module
from pdplugins.hosts.dynamo.router.calls import PreprocessedCall
from pdplugins.hosts.dynamo.router.engines import MOCKER
from pdplugins.hosts.dynamo.router.places import other
from pdplugins.hosts.dynamo.router.workers import DynamoWorker, DynamoWorkers
from pdplugins.limits import GatewayConfig
from pdplugins.types import Role
from tests.hosts.dynamo.router.scripted import Registry

CARD = {"kv_cache_block_size": 64, "runtime_config": {"total_kv_blocks": 100}}


def worker(*phases: Role) -> DynamoWorker:
    one = DynamoWorker("w", Role.DECODE, 1, dict.fromkeys(phases or (Role.DECODE,)))
    one.introduce(CARD, 2, MOCKER.capabilities(Role.DECODE, both=len(phases) > 1))
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
    with one.leg():
        one.enters()
        load.decode_starts(100)
        one.report(*step(2, decodes=1))
        assert (load.running_requests, load.queued_requests) == (1, 0)


def test_what_will_decode_here_later_hides_nothing_of_others() -> None:
    """It has an entry in the books while it prefills elsewhere, and the engine cannot report it yet."""
    one = worker()
    for _ in range(5):
        one.enters()
        one.view.load.decode_starts(10)
    for number in range(3):
        one.report(*step(number, decodes=8))
    assert one.view.load.running_requests == 5 + 8


def test_a_report_of_another_version_says_nothing() -> None:
    """Dynamo's decoder returns None for it."""
    one = worker()
    one.report((b"old",), lambda _: None)
    assert one.view.load.running_requests == 0


def test_a_report_of_one_worker_that_cannot_be_read_leaves_the_others_theirs() -> None:
    found, registries = discovered(both=False)
    registries[Role.DECODE, True].joins(7, "odd")
    registries[Role.DECODE, True].joins(8, "d1")
    found.look()
    raw, decode = step(1, decodes=3)

    def read(message: bytes) -> Any:
        if message == b"odd":
            raise ValueError(message)
        return decode(message)

    found._decode = read
    found._subscribers = {"any": SimpleNamespace(get_recent_stats=lambda: {(7, 0): b"odd", (8, 0): raw[0]})}
    found._report()
    assert found.by_id["d1"].view.load.running_requests == 3
    assert found._metrics.faults["odd_report"] == 1


def test_a_report_that_is_older_than_our_books_makes_no_others() -> None:
    """The engine still reports a request that has just ended here."""
    one = worker()
    with one.leg():
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
        mine = next(place for place in MOCKER.places(both=True) if place.role is role)
        assert mine.name != other(phase).name
    assert {place.role for place in MOCKER.places(both=False)} == set(Role)


def discovered(*, both: bool) -> tuple[DynamoWorkers, dict[tuple[Role, bool], Registry]]:
    """Workers that look at registries: of the phase of a role, and whether it is that of the workers' role."""
    here = MOCKER.places(both=both)
    found = DynamoWorkers(MOCKER, GatewayConfig(rest_s=0.5), GatewayMetrics(), both=both, tp=dict.fromkeys(Role, 2))
    registries = {(place.phase, place.role is not None): Registry() for place in here}
    found._clients = {place: registries[place.phase, place.role is not None] for place in here}
    found._subscribers = {place.component: registries[place.phase, place.role is not None] for place in here}
    found._decode = None  # nothing is reported here
    return found, registries


def test_a_worker_is_there_when_it_is_registered_and_has_said_what_it_is() -> None:
    found, registries = discovered(both=False)
    decode = registries[Role.DECODE, True]
    decode.instances.append(7)
    found.look()
    assert found.ready == (), "it has not said what it is"
    decode.instances.clear()
    decode.joins(7, "d1")
    found.look()
    (view,) = found.ready
    assert (view.id, view.role, view.tp, view.kv_capacity_tokens, view.free_kv_tokens) == (
        "d1",
        "decode",
        2,
        6400,
        6400,
    )
    before = found.ready
    found.look()
    assert found.ready is before


def test_a_worker_of_both_phases_is_there_when_it_serves_both() -> None:
    found, registries = discovered(both=True)
    registries[Role.PREFILL, True].joins(7, "p1")
    found.look()
    assert found.ready == ()
    registries[Role.DECODE, False].joins(7, "p1")
    found.look()
    (view,) = found.ready
    assert (view.id, view.role) == ("p1", Role.PREFILL)
    assert set(found.by_id["p1"].clients) == set(Role)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now_s = [100.0]
    for where in (module, shared):
        monkeypatch.setattr(where, "monotonic", lambda: now_s[0])
    return now_s


def test_a_worker_that_failed_comes_back_when_it_has_rested(clock: list[float]) -> None:
    async def run() -> None:
        found, registries = discovered(both=False)
        registries[Role.DECODE, True].joins(7, "d1")
        found.look()
        found.failed("d1", gone=True)
        assert found.ready == ()
        found.look()
        assert found.ready == ()
        clock[0] += 0.6
        found.look()
        assert found.ready_ids == {"d1"}

    asyncio.run(run())


def test_another_process_may_come_under_the_name_of_one_that_has_gone() -> None:
    """Even at once; but not while that one is there."""

    async def run() -> None:
        found, registries = discovered(both=False)
        decode = registries[Role.DECODE, True]
        decode.joins(7, "d1")
        found.look()
        decode.leaves(7)
        decode.joins(8, "d1")
        found.look()
        assert found.ready_ids == {"d1"}
        assert found.by_id["d1"].instance == 8
        decode.joins(9, "d1")
        found.look()
        assert found.ready_ids == {"d1", "9"}

    asyncio.run(run())


def test_workers_that_come_and_go_at_once_are_one_change() -> None:
    """Each change costs a time that grows with the number of workers."""

    async def run() -> None:
        found, registries = discovered(both=False)
        changes = list[frozenset[str]]()
        found.listen(lambda: changes.append(found.ready_ids))
        found._report = lambda: None  # type: ignore[method-assign]  # each report may free something
        both = registries[Role.PREFILL, True], registries[Role.DECODE, True]
        for number, registry in enumerate(both):
            registry.joins(number, f"w{number}")
            registry.joins(number + 2, f"w{number + 2}")
        found.look()
        assert found.serves.is_set()
        for number, registry in enumerate(both):
            registry.leaves(number)
            registry.leaves(number + 2)
            registry.joins(number + 4, f"w{number + 4}")
        found.look()
        assert found.serves.is_set()
        for number, registry in enumerate(both):
            registry.leaves(number + 4)
        found.look()
        assert not found.serves.is_set()
        found.look()
        assert changes == [{"w0", "w1", "w2", "w3"}, {"w4", "w5"}, set()]

    asyncio.run(run())


def test_what_fails_among_workers_that_come_leaves_the_others_ready() -> None:
    found, _ = discovered(both=False)
    one = worker()
    found.add(one)

    def fail() -> None:
        with found.together():
            found.came(one)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert found.ready == (one.view,)
    found.lost(one, "it has gone")
    assert not found.ready_ids, "alone again, each is a change of its own"


def test_a_worker_that_has_gone_is_forgotten_after_a_while(clock: list[float]) -> None:
    async def run() -> None:
        found, registries = discovered(both=False)
        registries[Role.DECODE, True].joins(7, "d1")
        found.look()
        registries[Role.DECODE, True].leaves(7)
        found.look()
        assert found.ready == ()
        assert "d1" in found.views, "a request may still name it"
        clock[0] += module.FORGET_S + 1
        found.look()
        assert not found.views
        assert not found.labels._books

    asyncio.run(run())


@pytest.mark.parametrize(
    "card",
    [
        {"runtime_config": None},
        {"runtime_config": {}},
        {"runtime_config": {"total_kv_blocks": float("inf")}},
        {"kv_cache_block_size": "x"},
        {"kv_cache_block_size": 0},
    ],
)
def test_an_odd_card_is_counted_and_the_others_serve(card: dict[str, Any]) -> None:
    found, registries = discovered(both=False)
    registries[Role.DECODE, True].joins(7, "odd", **card)
    registries[Role.DECODE, True].joins(8, "d1")
    found.look()
    assert found.ready_ids == {"d1"}
    assert found._metrics.faults["odd_card"] == 1


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
