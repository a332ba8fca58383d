"""The hooks of the dual-role instance, over a scheduler in small: what SGLang's own methods do is recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.sglang.roles import EngineRole
from tests.hosts.sglang.small_scheduler import (
    Batch,
    Mode,
    Req,
    Scheduler,
    add,
    build,
    decode,
    hand_over,
    host,
    local,
    prefill,
    rids,
)

__all__ = ["host"]


@pytest.fixture
def scheduler() -> Scheduler:
    return build()


def test_both_sides_are_built_and_the_decode_side_is_bound(scheduler: Scheduler) -> None:
    assert scheduler.disaggregation_mode is Mode.DECODE
    assert scheduler.disagg_prefill_bootstrap_queue is None
    assert scheduler.is_mixed_chunk
    scopes = scheduler.dual._state.scopes
    assert scopes.peek(EngineRole.PREFILL, "disagg_prefill_bootstrap_queue") is not None
    assert scopes.peek(EngineRole.PREFILL, "buffers") is not scheduler.buffers
    assert scopes.peek(EngineRole.LOCAL, "buffers") is scheduler.buffers


def test_requests_of_three_roles_share_the_engine(scheduler: Scheduler) -> None:
    add(scheduler, local("l"), prefill("p"), decode("d"))
    ran = [rids(scheduler.step()) for _ in range(6)]
    assert ["l"] in ran
    assert ["p"] in ran
    assert set(ran[-1]) == {"l", "d"}  # both decode together; what was prefilled for another server does not
    assert ("send", ["p"]) in scheduler.calls


def test_decodes_that_wait_to_join_are_not_starved_by_local_prompts(scheduler: Scheduler) -> None:
    """A local batch joins the running one by a call that lets nobody else join; that may not go on for ever."""
    add(scheduler, *(local(f"l{i}") for i in range(40)))
    for _ in range(6):
        scheduler.step()
    add(scheduler, decode("d"))
    assert any("d" in rids(scheduler.step()) for _ in range(4))


@pytest.mark.parametrize("burst", [1, 3])
def test_a_flood_of_prompts_leaves_steps_for_decode(burst: int) -> None:
    scheduler = build(burst=burst)
    add(scheduler, decode("d"), *(prefill(f"p{i}") for i in range(50)), *(local(f"l{i}") for i in range(50)))
    ran = [scheduler.step() for _ in range(40)]
    decodes = [batch.mode == "decode" for batch in ran if batch]
    assert max(map(len, "".join("x" if one else "." for one in decodes).split("x"))) <= burst
    prompts = "".join(rids(batch)[0][0] for batch in ran if batch and batch.mode == "extend")
    assert "ppp" not in prompts
    assert "lll" not in prompts


def test_a_retracted_request_waits_on_the_decode_side_whatever_it_was(scheduler: Scheduler) -> None:
    """And it has a node of the radix cache: older versions of SGLang would match it anew, and leak what they find."""
    retracted = local("l")
    add(scheduler, retracted, retracted=True)
    assert rids(Batch(scheduler.waiting_queue)) == ["l"]
    assert retracted.last_node is scheduler.tree_cache.root_node


def test_a_decode_server_that_does_not_come_is_waited_for_so_long_and_no_longer(scheduler: Scheduler) -> None:
    ended: list[tuple[int, str]] = []
    manager = SimpleNamespace(record_failure=lambda room, why: ended.append((room, why)))
    for rid, waited_s, room in (("late", 301, 7), ("early", 100, 8)):
        request = prefill(rid)
        request.time_stats.prefill_bootstrap_queue_entry_time = time.perf_counter() - waited_s
        request.disagg_kv_sender = SimpleNamespace(abort=lambda: None, kv_mgr=manager, bootstrap_room=room)
        add(scheduler, request)
    scheduler.step()
    assert ended == [(7, "no decode server came within 300 s")]


@dataclass
class Newer(Scheduler):
    """Looks for time-outs itself, and binds retracted requests to the root itself."""

    def _poll_timeout_aborts(self) -> list[Any]:
        return [SimpleNamespace(rid=req.rid) for req in self.waiting_queue + self.running_batch.reqs]


def test_time_outs_are_looked_for_whatever_role_has_the_step(scheduler: Scheduler) -> None:
    """Older versions look when they compose a step of local requests, and only then."""
    add(scheduler, local("l"), decode("d"))
    scheduler.step()
    assert scheduler.calls[:2] == [("waiting timeouts", ["l"]), ("running timeouts", [])]
    while scheduler.waiting_queue:
        scheduler.step()
    scheduler.step()
    assert scheduler.calls[-2][0] == "running timeouts"
    assert set(scheduler.calls[-2][1]) == {"l", "d"}


def test_newer_versions_are_asked_for_time_outs_once_for_each_role() -> None:
    scheduler = build(Newer())
    retracted = decode("r")
    add(scheduler, retracted, retracted=True)
    assert retracted.last_node is None
    scheduler.step()
    assert not [name for name, _ in scheduler.calls if name.endswith("timeouts")]
    add(scheduler, local("l"), decode("d"))
    aborts = scheduler.dual.timeouts(Newer._poll_timeout_aborts, scheduler)
    assert sorted(abort.rid for abort in aborts) == ["d", "l", "r"]


def test_a_chunk_in_progress_is_hidden_from_decode_steps_and_kept(scheduler: Scheduler) -> None:
    scheduler.chunked_req = prefill("p")
    scheduler.chunked_req.chunks = 3
    add(scheduler, decode("d"))
    ran = [rids(scheduler.step()) for _ in range(4)]
    assert sorted(ran) == [["d"], ["d"], ["p"], ["p"]]
    assert scheduler.chunked_req.rid == "p"


@pytest.mark.parametrize(("prompt", "places"), [(local("l"), 3), (prefill("p"), 4)])
def test_decodes_leave_a_place_for_a_local_prompt_in_chunks(prompt: Req, places: int) -> None:
    """It will decode here, and with mixed steps it shares theirs. A prompt for another server will do neither."""
    scheduler = build(Scheduler(max_running_requests=4))
    prompt.chunks = 9
    add(scheduler, prompt)
    scheduler.step()
    add(scheduler, *(decode(f"d{number}") for number in range(6)))
    ran = [scheduler.step() for _ in range(6)]
    assert max(len(batch.reqs) for batch in ran if batch is not None) == places
    assert scheduler.max_running_requests == 4


def test_a_hand_over_goes_between_the_chunks_of_a_local_prompt(scheduler: Scheduler) -> None:
    """One after each chunk: the prompt gets on as well, and SGLang never sees two prompts in the middle of chunks."""
    prompt = local("l")
    prompt.chunks = 3
    add(scheduler, prompt)
    ran = [rids(scheduler.step())]
    add(scheduler, prefill("p"), hand_over("h1"), hand_over("h2"))
    ran += [rids(scheduler.step()) for _ in range(2)]
    assert (ran, scheduler.chunked_req) == ([["l"], ["h1", "h2"], ["l"]], prompt)
    add(scheduler, hand_over("h3"))
    assert [rids(scheduler.step()) for _ in range(4)] == [["h3"], ["l"], ["l"], ["p"]]  # then it decodes
    assert [rids for name, rids in scheduler.calls if name == "send"] == [["h1", "h2"], ["h3"]]


def test_hand_overs_leave_the_kv_cache_that_the_chunks_to_come_need() -> None:
    """What they hold cannot be evicted, and SGLang ends a server that has no place for the next chunk."""
    scheduler = build()
    prompt = local("l")
    prompt.chunks = 2
    add(scheduler, prompt)
    scheduler.step()
    scheduler.free_tokens = prompt.seqlen + 100 + 102  # the rest of the prompt, and one hand-over of 100 and a bit
    add(scheduler, hand_over("h1"), hand_over("h2"))
    assert [rids(scheduler.step()) for _ in range(2)] == [["h1"], ["l"]]


def test_with_large_pages_one_hand_over_goes_at_a_time() -> None:
    """SGLang might make chunks of a second one, and can hold one prompt that has some left."""
    scheduler = build(Scheduler(page_size=64))
    prompt = local("l")
    prompt.chunks = 3
    add(scheduler, prompt)
    scheduler.step()
    add(scheduler, hand_over("h1"), hand_over("h2"))
    assert [rids(scheduler.step()) for _ in range(4)] == [["h1"], ["l"], ["h2"], ["l"]]


def test_hand_overs_go_before_prompts_that_came_first(scheduler: Scheduler) -> None:
    add(scheduler, prefill("p1"), prefill("p2"), hand_over("h1"), hand_over("h2"))
    assert [rids(scheduler.step()) for _ in range(2)] == [["h1", "h2", "p1"], ["p2"]]


def test_what_was_evicted_meanwhile_is_a_prompt_like_others(scheduler: Scheduler) -> None:
    prompt, evicted = local("l"), hand_over("h")
    prompt.chunks = 2
    add(scheduler, prompt)
    scheduler.step()
    add(scheduler, evicted)
    seen = iter((99, 0))  # when it came, and when its turn has come
    evicted.init_next_round_input = lambda cache: setattr(evicted, "prefix_len", next(seen))
    assert rids(scheduler.step()) == ["l"]


def test_no_hand_over_goes_before_the_abort_of_a_prompt_in_chunks(scheduler: Scheduler) -> None:
    """SGLang looks for it where the prompt is that has chunks left; a hand-over is composed without that prompt."""
    prompt = local("l")
    prompt.chunks = 3
    add(scheduler, prompt)
    scheduler.step()
    scheduler._pending_chunked_abort_req = prompt
    add(scheduler, hand_over("h"))
    assert rids(scheduler.step()) == ["l"]


def test_abort_reaches_the_queues_of_every_role(scheduler: Scheduler) -> None:
    add(scheduler, local("x"), local("keep"), decode("x"))
    scheduler.dual.abort(Scheduler.abort, scheduler, SimpleNamespace(rid="x"))
    assert [mode for name, mode in scheduler.calls if name == "abort"] == [Mode.NULL, Mode.PREFILL, Mode.DECODE]
    assert scheduler.waiting_queue == []
    assert rids(Batch(scheduler.dual._state.scopes.peek(EngineRole.LOCAL, "waiting_queue"))) == ["keep"]


@pytest.mark.parametrize("req", [local("l"), prefill("p"), decode("d")])
def test_work_of_any_role_keeps_the_engine_from_being_idle(scheduler: Scheduler, req: Req) -> None:
    idle = scheduler.dual.is_fully_idle
    assert idle(Scheduler.is_fully_idle, scheduler)
    add(scheduler, req)
    assert not idle(Scheduler.is_fully_idle, scheduler)


def test_the_load_report_counts_every_queue(scheduler: Scheduler) -> None:
    add(scheduler, local("l"), prefill("p"), decode("d"))
    snapshot = SimpleNamespace(
        num_waiting_reqs=1,
        num_waiting_uncached_tokens=0,
        num_total_tokens=0,
        queues=SimpleNamespace(waiting=0),
        disaggregation=SimpleNamespace(prefill_bootstrap_queue_reqs=0, prefill_inflight_queue_reqs=0),
    )
    chunked = Req("c", seqlen=500, prefix_len=300)

    def stock(inquirer: Any) -> Any:
        """SGLang's report reads the decode side's queues, also while a step of another role runs."""
        assert scheduler.disaggregation_mode is Mode.DECODE
        return snapshot

    with scheduler.dual._state.scopes.enter(EngineRole.PREFILL):
        scheduler.dual.loads(stock, SimpleNamespace(get_chunked_req=lambda: chunked))
    assert (snapshot.num_waiting_reqs, snapshot.num_waiting_uncached_tokens) == (3, 400)
    assert snapshot.disaggregation.prefill_bootstrap_queue_reqs == 1
    assert snapshot.queues.waiting == 1


def test_the_load_report_is_fresh_while_requests_only_wait(scheduler: Scheduler) -> None:
    """SGLang publishes it after a step, and when nothing is left to do."""
    add(scheduler, decode("d"))
    assert scheduler.step() is not None
    assert ("load", None) not in scheduler.calls
    scheduler.running_batch.reqs.clear()
    assert scheduler.step() is None
    assert ("load", None) in scheduler.calls


def test_a_retracting_pause_becomes_one_in_place(scheduler: Scheduler) -> None:
    request = SimpleNamespace(mode="retract")
    scheduler.dual.pause(lambda s, r: None, scheduler, request)
    assert request.mode == "in_place"


def budget(scheduler: Scheduler, *, tokens: int = 1000, free_slots: int = 20, just_reserved: int = 0) -> int:
    queue = SimpleNamespace(
        scheduler=scheduler,
        transfer_queue=SimpleNamespace(queue=[]),
        max_total_num_tokens=1000,
        num_reserved_decode_tokens=50,
        req_to_token_pool=SimpleNamespace(size=40, available_size=lambda: free_slots),
    )
    return int(scheduler.dual.decode_budget(lambda q, **more: tokens, queue, extra_reserved_reqs=just_reserved))


def test_reservations_for_decode_leave_room_for_prefill(scheduler: Scheduler) -> None:
    """Else two servers that have filled themselves wait for each other's prefill for ever."""
    assert budget(scheduler) == 1050  # nothing is held: a request may need all of it
    assert budget(scheduler, tokens=800) == 800
    assert budget(scheduler, just_reserved=1) == 900
    scheduler.running_batch.reqs.append(decode("d"))
    assert budget(scheduler) == 900
    add(scheduler, Req("p", "127.0.0.1", 8998, 7, seqlen=350))
    assert budget(scheduler) == 650
    assert budget(scheduler, free_slots=4) <= 0
    scheduler.chunked_req = Req("c", seqlen=800, prefix_len=100)
    assert budget(scheduler) == 300


def test_strict_refuses_what_is_not_supported() -> None:
    with pytest.raises(SystemExit, match="--tp-size is 2, must be 1: never run"):
        build(tp_size=2)


def test_lenient_leaves_a_stock_decode_server() -> None:
    scheduler = build(strict=False, tp_size=2)
    scheduler.waiting_queue.append(decode("d"))
    assert rids(scheduler.step()) == ["d"]
    assert scheduler.dual.is_fully_idle(Scheduler.is_fully_idle, scheduler)
    assert scheduler.disagg_prefill_bootstrap_queue is None


def test_logprobs_of_a_prompt_are_told_by_the_server_that_prefilled_it(scheduler: Scheduler) -> None:
    """A decode server of SGLang leaves them out: whoever prefilled has told them."""
    answers, seen = SimpleNamespace(disaggregation_mode=Mode.DECODE), []
    scheduler.dual.tell(lambda given, req: seen.append((given.disaggregation_mode, req)), answers, req="r")
    assert seen == [(Mode.NULL, "r")]
