"""Under any steady mix, every kind of work that waits gets a step within a bound."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdplugins.hosts.sglang.roles import EngineRole
from tests.hosts.sglang.small_scheduler import (
    Batch,
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

STEPS = 120
KINDS = {"local": local, "prefill": prefill, "hand_over": hand_over, "decode": decode}


def serve(scheduler: Scheduler, mix: dict[str, tuple[int, int]]) -> tuple[list[Batch], list[bool]]:
    """Let requests of each kind of `mix` always wait, each with so many chunks and tokens of output.

    Returns the steps, and which of them are decode steps or had nothing to decode.
    """
    ran, decoded, made = list[Batch](), list[bool](), 0
    for _ in range(STEPS):
        scopes = scheduler.dual._state.scopes
        for kind, (chunks, output) in mix.items():
            role = EngineRole("prefill" if kind == "hand_over" else kind)
            if not any(request.rid.startswith(kind) for request in scopes.peek(role, "waiting_queue")):
                request: Req = KINDS[kind](f"{kind}{made}")
                request.chunks, request.output = 1 if request.cached else chunks, output
                add(scheduler, request)
                made += 1
        idle = scheduler.running_batch.is_empty() and not scheduler.waiting_queue
        batch = scheduler.step()
        assert batch is not None
        ran.append(Batch(list(batch.reqs), batch.mode))
        decoded.append(idle or batch.mode == "decode")
    return ran, decoded


def longest_wait(turns: list[bool]) -> int:
    return max(len(gap) for gap in "".join("x" if one else "." for one in turns).split("x"))


@pytest.mark.moderate
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(sorted(KINDS)), st.tuples(st.integers(1, 6), st.integers(1, 9)), min_size=1),
)
def test_every_kind_of_work_gets_its_turn(burst: int, mix: dict[str, tuple[int, int]]) -> None:
    """Local prompts and prompts for other servers, in chunks or not; what decodes; what waits to join that."""
    ran, decoded = serve(build(burst=burst), mix)
    chunks = max(chunks for chunks, _ in mix.values())
    steps = 3 * (1 + ("hand_over" in mix))  # a chunk, a decode step, and one that others join; the same for hand-overs
    prompt = steps * chunks + 1
    for kind in mix.keys() - {"decode"}:
        turns = [batch.mode == "extend" and any(one.rid.startswith(kind) for one in batch.reqs) for batch in ran]
        assert longest_wait(turns) <= prompt + burst + 1, (kind, turns)
    if "decode" in mix:
        joined = [any(req.rid.startswith("decode") for req in batch.reqs) for batch in ran]
        assert longest_wait(joined) <= 2 * burst, joined  # each local prompt joins by a decode step of its own
    assert longest_wait(decoded) <= burst, decoded


def test_decodes_join_while_a_local_prompt_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is one of SGLang's decode steps then, in which nobody joins."""
    scheduler = build()
    add(scheduler, local("runs"))
    scheduler.step()
    scheduler.step()
    monkeypatch.setattr(scheduler, "prefill_batch", lambda: None)
    add(scheduler, local("waits"), decode("joins"))
    assert any("joins" in rids(scheduler.step()) for _ in range(4))


def test_decodes_join_while_local_prompts_mix_with_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = build()
    add(scheduler, local("runs"))
    scheduler.step()
    scheduler.step()
    monkeypatch.setattr(
        scheduler, "prefill_batch", lambda: Batch([local("more")], decoding_reqs=list(scheduler.running_batch.reqs))
    )
    add(scheduler, local("waits"), decode("joins"))
    assert any("joins" in rids(scheduler.step()) for _ in range(4))


def test_no_local_prompt_begins_while_a_retracted_request_waits_for_what_runs() -> None:
    """Each piece of KV cache that is freed would go to the next prompt, which asks for less."""
    scheduler = build()
    add(scheduler, decode("runs"))
    scheduler.step()
    retracted = scheduler.disagg_decode_prealloc_queue.retracted_queue
    retracted.append(decode("retracted"))
    add(scheduler, local("waits"))
    assert [rids(scheduler.step()) for _ in range(5)] == [["runs"]] * 5
    scheduler.running_batch.reqs.clear()
    assert rids(scheduler.step()) == ["waits"], "nothing runs that would free any"
