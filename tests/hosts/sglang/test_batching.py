"""A policy's plan becomes what SGLang may look at; steps are timed by when they complete."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pdplugins.config import Config
from pdplugins.errors import ConfigError
from pdplugins.hosts.sglang.batching import BatchHooks, view_of
from pdplugins.hosts.sglang.install import journal_of
from pdplugins.hosts.sglang.launches import MOST_CHUNKS
from pdplugins.resources import DECISION_LOG_VARIABLE
from pdplugins.runtime.explain import Choose, explain
from pdplugins.types import BatchPlan, BatchView, Terms


def req(rid: str, tokens: int, *, cached: int = 0, queued_s: float = 1.0) -> Any:
    return SimpleNamespace(
        rid=rid,
        seqlen=tokens,
        num_matched_prefix_tokens=cached,
        prefix_len=cached,
        time_stats=SimpleNamespace(wait_queue_entry_time=queued_s),
    )


@dataclass
class Policy:
    plan: BatchPlan | Exception
    views: list[BatchView] = field(default_factory=list)
    steps: list[tuple[BatchPlan, BatchView, float]] = field(default_factory=list)

    def next_batch(self, view: BatchView, now_s: float) -> BatchPlan:
        self.views.append(view)
        if isinstance(self.plan, Exception):
            raise self.plan
        return self.plan

    def on_step(self, view: BatchView, plan: BatchPlan, took_s: float) -> None:
        self.steps.append((plan, view, took_s))


class Engine:
    """Composes a step from what it sees, and keeps what that was."""

    def __init__(self, policy: Policy, *waiting: Any, chunk: int | None = 8192, mixed: bool = False) -> None:
        self.policy = policy
        self.now_s = 10.0
        self.hooks = BatchHooks(lambda mixes: policy, lambda: self.now_s)
        self.waiting_queue = list(waiting)
        self.chunked_prefill_size = chunk
        self.chunked_req: Any = None
        self.is_mixed_chunk = mixed
        self.page_size = 1
        self.attn_tp_group: Any = SimpleNamespace(world_size=1)
        self.device = "cuda"
        self.last_batch: Any = None
        self.disaggregation_mode = "null"
        self.running = self.running_batch = SimpleNamespace(
            reqs=[], is_empty=lambda: not self.running.reqs, is_prefill_only=False
        )
        self.saw: tuple[list[str], int | None] | None = None

    def step(self, takes: int = 99) -> Any:
        self.saw = None
        return self.hooks.new_prefill(lambda s, r: s.compose(takes), self, self.running)

    def compose(self, takes: int) -> str:
        self.saw = ([one.rid for one in self.waiting_queue], self.chunked_prefill_size)
        self.waiting_queue = [*self.waiting_queue[takes:], req("new", 5)]
        return "composed"


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sglang.srt.managers.schedule_batch")
    module.NextBatchPlan = lambda batch_to_run, running_batch: "nothing"  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_batch_that_runs_within_another_one_has_no_results_of_its_own() -> None:
    """SGLang runs an idle batch so, where attention is data parallel."""
    engine = Engine(Policy(BatchPlan({})))
    mode = SimpleNamespace(is_extend=lambda: False, is_decode=lambda: False)
    batch = SimpleNamespace(reqs=[], is_empty=lambda: True, forward_mode=mode)

    def nested(scheduler: Any, one: Any) -> str:
        return str(engine.hooks.run(lambda *_: "inner", scheduler, one))

    for _ in range(100):
        assert engine.hooks.run(nested, engine, batch) == "inner"
        engine.hooks.completed(lambda *_: None, engine, batch, None)
    assert not engine.hooks._run


def test_sglang_sees_what_was_chosen_in_the_order_of_the_plan() -> None:
    engine = Engine(Policy(BatchPlan({"c": 30, "a": 10})), req("a", 10), req("b", 20), req("c", 30))
    assert engine.step() == "composed"
    assert engine.saw == (["c", "a"], 40)
    assert engine.chunked_prefill_size == 8192
    assert [one.rid for one in engine.waiting_queue] == ["b", "new"]


def test_what_did_not_fit_waits_at_its_old_place() -> None:
    engine = Engine(Policy(BatchPlan({"c": 30, "a": 10})), req("a", 10), req("b", 20), req("c", 30))
    engine.step(takes=1)
    assert [one.rid for one in engine.waiting_queue] == ["a", "b", "new"]


def test_a_mixed_step_has_room_for_the_decodes_beside_the_prompt_tokens() -> None:
    engine = Engine(Policy(BatchPlan({"a": 10})), req("a", 100), mixed=True)
    engine.running.reqs = [req("d", 50), req("e", 60)]
    engine.step()
    assert engine.saw == (["a"], 12)


def test_the_engines_own_chunk_size_stays_the_limit() -> None:
    engine = Engine(Policy(BatchPlan({"a": 20_000})), req("a", 20_000))
    engine.step()
    assert engine.saw == (["a"], 8192)


def test_the_policy_sees_the_chunk_in_progress_first_and_what_is_done_of_it() -> None:
    engine = Engine(Policy(BatchPlan({})), req("a", 10, cached=4, queued_s=3.0))
    engine.chunked_req = req("big", 1000, cached=600)
    engine.running.reqs = [req("d", 50), req("e", 60)]
    view = view_of(engine, engine.running, lambda name: None)
    assert [(one.request.id, one.remaining_tokens, one.done_tokens) for one in view.queue] == [
        ("big", 400, 600),
        ("a", 6, 4),
    ]
    assert (view.decode_requests, view.decode_context_tokens) == (2, 110)
    assert view.queue[1].queued_s == 3.0


def test_the_policy_sees_what_a_request_asks_for_itself() -> None:
    asked = {"a": Terms(priority=1, ttft_s=0.5), "big": Terms(weight=2.0)}
    engine = Engine(Policy(BatchPlan({})), req("a", 10), req("b", 10))
    engine.hooks = BatchHooks(lambda mixes: engine.policy, lambda: 10.0, asked.get)
    engine.chunked_req = req("big", 1000, cached=600)
    engine.step()
    (view,) = engine.policy.views
    assert {one.request.id: one.request.terms for one in view.queue} == {**asked, "b": None}


def test_what_was_decided_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file for each process, opened at its first step; `explain` then says why a request was prefilled when."""
    monkeypatch.setenv(DECISION_LOG_VARIABLE, str(tmp_path / "engine.jsonl"))
    config = Config.model_validate({"batch_scheduler": "dynaserve", "decision_log": {"sample": 1}})
    engine = Engine(Policy(BatchPlan({"a": 10}, reason="it is the oldest")), req("a", 10))
    engine.hooks = BatchHooks(lambda mixes: engine.policy, lambda: 10.0, journal=journal_of(config))
    assert list(tmp_path.iterdir()) == []
    engine.step()
    (log,) = tmp_path.iterdir()
    assert log.name == f"engine-{os.getpid()}.jsonl"
    told = "\n".join(explain(log, Choose(request="a")))
    assert "batch scheduler  prefill a 10" in told
    assert "it is the oldest" in told
    assert "nothing here about request b: ids are as in a" in "\n".join(explain(log, Choose(request="b")))


def test_processes_that_start_at_once_do_not_try_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file under which another process tries whether it can write is in the way of nobody else."""
    monkeypatch.setenv(DECISION_LOG_VARIABLE, str(tmp_path / "engine.jsonl"))
    (tmp_path / ".engine.part.jsonl").mkdir()
    opened = journal_of(Config.model_validate({"batch_scheduler": "dynaserve"}))
    assert [path.name for path in tmp_path.iterdir()] == [".engine.part.jsonl"], "nothing of the try stays"
    assert opened() is not None


def test_an_engine_that_cannot_log_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is missing is told at the start; one that goes away later is no reason to stop."""
    folder = tmp_path / "logs"
    monkeypatch.setenv(DECISION_LOG_VARIABLE, str(folder / "engine.jsonl"))
    config = Config.model_validate({"batch_scheduler": "dynaserve"})
    with pytest.raises(ConfigError, match="create it first"):
        journal_of(config)
    folder.mkdir()
    journal = journal_of(config)
    (folder / f"engine-{os.getpid()}.jsonl").mkdir()
    engine = Engine(Policy(BatchPlan({"a": 10})), req("a", 10))
    engine.hooks = BatchHooks(lambda mixes: engine.policy, lambda: 10.0, journal=journal)
    assert engine.step() == "composed"


def test_an_empty_plan_is_a_decode_step() -> None:
    engine = Engine(Policy(BatchPlan({})), req("a", 10))
    engine.running.reqs = [req("d", 50)]
    assert engine.step() == "nothing"
    assert [one.rid for one in engine.waiting_queue] == ["a"]


def test_an_idle_engine_waits_as_long_as_the_plan_says_and_no_longer() -> None:
    engine = Engine(Policy(BatchPlan({}, wait_s=0.5)), req("a", 10))
    assert engine.step() == "nothing"
    engine.now_s += 0.4
    assert engine.step() == "nothing"
    assert len(engine.policy.views) == 1
    engine.now_s += 0.2
    engine.step()
    assert len(engine.policy.views) == 2


def test_an_idle_engine_that_waits_for_more_requests_shows_them_when_they_come() -> None:
    engine = Engine(Policy(BatchPlan({}, wait_s=5.0)), req("a", 10))
    engine.step()
    engine.waiting_queue.append(req("b", 10))
    engine.policy.plan = BatchPlan({"a": 10, "b": 10})
    assert engine.step() == "composed"
    assert engine.saw is not None
    assert engine.saw[0] == ["a", "b"]


def test_an_idle_engine_with_work_does_not_stand_still_for_no_reason() -> None:
    engine = Engine(Policy(BatchPlan({})), req("a", 10))
    assert engine.step() == "composed"


def test_a_policy_that_raises_leaves_the_engine_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(Policy(ValueError("oops")), req("a", 10))
    assert engine.step() == "composed"
    engine.step()
    assert caplog.text.count("Policy raised ValueError: oops") == 1


def test_a_policy_that_cannot_be_built_leaves_the_engine_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(Policy(BatchPlan({})), req("a", 10))

    def build(mixes: bool) -> Policy:
        raise ValueError("oops")

    engine.hooks = BatchHooks(build, lambda: 10.0)
    assert [engine.step(), engine.step()] == ["composed", "composed"]
    run(engine, batch("EXTEND"), 10.0)
    complete(engine, batch("EXTEND"), 10.1)
    assert caplog.text.count("it cannot be built: oops") == 1


def batch(
    mode: str, *reqs: Any, lens: list[int] | None = None, done: list[int] | None = None, decoding: Any = None
) -> Any:
    forward_mode = SimpleNamespace(is_extend=lambda: mode == "extend", is_decode=lambda: mode == "decode")
    return SimpleNamespace(
        reqs=list(reqs), forward_mode=forward_mode, extend_lens=lens, prefix_lens=done, decoding_reqs=decoding
    )


def run(engine: Engine, one: Any, at_s: float, until_s: float | None = None) -> None:
    """Run a batch from `at_s` on. The call returns at once, as on a GPU, or at `until_s`."""

    def original(scheduler: Any, batch: Any) -> None:
        engine.now_s = at_s if until_s is None else until_s

    engine.now_s = at_s
    engine.hooks.run(original, engine, one)
    engine.last_batch = one


def complete(engine: Engine, one: Any, at_s: float) -> None:
    engine.now_s = at_s
    engine.hooks.completed(lambda s, b, r: None, engine, one, None)


def test_a_step_takes_until_its_results_are_there_not_until_it_is_launched() -> None:
    """With overlap scheduling the second step is launched before the first one has ended."""
    policy = Policy(BatchPlan({"a": 10}))
    engine = Engine(policy, req("a", 10))
    engine.step()
    first = batch("extend", req("a", 40), req("d", 70), lens=[10, 1], done=[30, 69], decoding=[req("d", 70)])
    second = batch("decode", req("a", 41), req("d", 71))
    run(engine, first, 20.0)
    run(engine, second, 20.1)
    complete(engine, first, 20.5)
    complete(engine, second, 20.7)
    (plan, view, took_s), (decodes, after, then_s) = policy.steps
    assert plan.prefill_tokens == {"a": 10}
    assert [(one.remaining_tokens, one.done_tokens) for one in view.queue] == [(10, 30)]
    assert (view.decode_requests, view.decode_context_tokens) == (1, 70)
    assert took_s == pytest.approx(0.5)
    assert decodes.prefill_tokens == {}
    assert (after.decode_requests, after.decode_context_tokens) == (2, 112)
    assert then_s == pytest.approx(0.2)


def test_on_a_cpu_a_step_ends_when_its_call_returns() -> None:
    """Its results wait there until the next step has run too."""
    engine = Engine(Policy(BatchPlan({"a": 10})), req("a", 10))
    engine.device = "cpu"
    engine.step()
    first, second = batch("decode", req("d", 70)), batch("decode", req("d", 71))
    run(engine, first, 20.0, 20.2)
    run(engine, second, 20.3, 20.9)
    complete(engine, first, 20.91)
    complete(engine, second, 21.5)
    assert [pytest.approx(took_s) for _, _, took_s in engine.policy.steps] == [0.2, 0.7]


def test_the_pause_before_a_step_counts_unless_the_engine_idles() -> None:
    """For the requests that decode, the engine's own work between two steps is part of the time between tokens."""
    engine = Engine(Policy(BatchPlan({"a": 10})), req("a", 10))
    engine.step()
    for begin_s, end_s in ((20.0, 20.1), (20.13, 20.2)):
        ran(engine, batch("decode", req("d", 70)), begin_s, end_s)
    assert [pytest.approx(took_s) for _, _, took_s in engine.policy.steps] == [0.1, 0.1]


@pytest.mark.parametrize(("burst", "composed"), [(None, 3), (1, 1), (2, 2)])
def test_prompts_leave_a_step_to_those_that_decode(burst: int | None, composed: int) -> None:
    """A policy sizes each step; SGLang would run one with prompts after the other, and nobody would get a token."""
    engine = decoding(burst)
    for number in range(3):
        if engine.step() == "nothing":
            break
        ran(engine, batch("extend", req("a", 40), lens=[10], done=[30]), 20.0 + number, 20.5 + number)
    assert len(engine.policy.views) == composed
    ran(engine, batch("decode", req("d", 71)), 30.0, 30.1)
    assert engine.step() == "composed"
    engine.running.reqs = []
    ran(engine, batch("extend", req("a", 40), lens=[10], done=[30]), 31.0, 31.1)
    assert engine.step() == "composed"


def test_requests_that_never_decode_need_no_step_of_their_own() -> None:
    """SGLang lists those that want scores or an embedding among the running ones."""
    engine = decoding(burst=1)
    engine.running.is_prefill_only = True
    for number in range(3):
        assert engine.step() == "composed"
        ran(engine, batch("extend", req("a", 40), lens=[10], done=[30]), 20.0 + number, 20.5 + number)


def test_while_somebody_has_paused_the_engine_no_step_runs() -> None:
    engine = Engine(Policy(BatchPlan({"a": 10})), req("a", 10))
    engine.step()
    for begin_s, end_s in ((20.0, 20.1), (90.0, 90.2)):
        ran(engine, batch("decode", req("d", 70)), begin_s, end_s)
    assert [pytest.approx(took_s) for _, _, took_s in engine.policy.steps] == [0.1, 0.2]


@pytest.mark.parametrize("mixed", [False, True])
def test_the_policy_is_made_for_the_steps_of_this_engine(mixed: bool) -> None:
    told: list[bool] = []
    engine = Engine(Policy(BatchPlan({})), req("a", 10), mixed=mixed)

    def build(mixes: bool) -> Policy:
        told.append(mixes)
        return engine.policy

    engine.hooks = BatchHooks(build, lambda: 10.0)
    engine.step()
    engine.step()
    assert told == [mixed]


def decoding(burst: int | None = None) -> Engine:
    """Return an engine with one request that decodes, whose policy has been asked."""
    engine = Engine(Policy(BatchPlan({"a": 10})), req("a", 10))
    engine.hooks = BatchHooks(lambda mixes: engine.policy, lambda: engine.now_s, burst=burst)
    engine.running.reqs = [req("d", 70)]
    engine.step()
    engine.policy.views.clear()
    engine.waiting_queue = [req("a", 10)]
    return engine


def ran(engine: Engine, one: Any, from_s: float, to_s: float) -> None:
    run(engine, one, from_s)
    complete(engine, one, to_s)


def test_a_step_that_delays_decodes_counts_with_the_decode_step_after_it() -> None:
    """For the requests that decode, both together are the time between two tokens."""
    engine = decoding()
    ran(engine, batch("extend", req("a", 40), lens=[10], done=[30]), 20.0, 20.5)
    assert not engine.policy.steps
    ran(engine, batch("decode", req("a", 41), req("d", 71)), 20.5, 20.7)
    [(plan, view, took_s)] = engine.policy.steps
    assert plan.prefill_tokens == {"a": 10}
    assert [(one.request.id, one.remaining_tokens, one.done_tokens) for one in view.queue] == [("a", 10, 30)]
    assert (view.decode_requests, view.decode_context_tokens) == (2, 112)
    assert took_s == pytest.approx(0.7)


def test_several_steps_that_delay_decodes_count_as_one() -> None:
    engine = decoding()
    ran(engine, batch("extend", req("a", 30), lens=[10], done=[20]), 20.0, 20.1)
    ran(engine, batch("extend", req("a", 40), req("b", 5), lens=[10, 5], done=[30, 0]), 20.1, 20.3)
    ran(engine, batch("decode", req("d", 71)), 20.3, 20.4)
    [(plan, view, took_s)] = engine.policy.steps
    assert plan.prefill_tokens == {"a": 20, "b": 5}
    chunks = [(one.request.id, one.remaining_tokens, one.done_tokens) for one in view.queue]
    assert chunks == [("a", 20, 20), ("b", 5, 0)]
    assert took_s == pytest.approx(0.4)


def test_a_step_whose_decodes_have_gone_counts_alone() -> None:
    """All that decoded were aborted: no token of theirs ends the gap."""
    engine = decoding()
    ran(engine, batch("extend", req("a", 40), lens=[40], done=[0]), 20.0, 20.5)
    engine.running.reqs, engine.last_batch = [], None
    ran(engine, batch("extend", req("b", 40), lens=[40], done=[0]), 30.0, 30.2)
    assert [(*plan.prefill_tokens, pytest.approx(took_s)) for plan, _, took_s in engine.policy.steps] == [
        ("a", 0.5),
        ("b", 0.2),
    ]


def test_what_delays_decodes_without_end_fills_no_memory() -> None:
    engine = decoding()
    for number in range(3 * MOST_CHUNKS):
        ran(engine, batch("extend", req(f"{number}", 40), lens=[40], done=[0]), float(number), number + 0.5)
    assert [len(view.queue) for _, view, _ in engine.policy.steps] == [MOST_CHUNKS, MOST_CHUNKS]


def test_a_step_after_idling_counts_from_its_launch() -> None:
    policy = Policy(BatchPlan({"a": 10}))
    engine = Engine(policy, req("a", 10))
    engine.step()
    one = batch("decode", req("a", 41))
    run(engine, one, 20.0)
    complete(engine, one, 20.1)
    engine.last_batch = None
    run(engine, one, 90.0)
    complete(engine, one, 90.3)
    assert policy.steps[-1][2] == pytest.approx(0.3)


def test_the_policy_sees_the_tpot_that_running_requests_ask_for_themselves() -> None:
    asked = {"d": Terms(tpot_s=0.03), "e": Terms(priority=1)}
    engine = Engine(Policy(BatchPlan({})), req("a", 10))
    engine.hooks = BatchHooks(lambda mixes: engine.policy, lambda: 10.0, asked.get)
    engine.running.reqs = [req("d", 50), req("e", 60), req("f", 70)]
    engine.step()
    (view,) = engine.policy.views
    assert (view.decode_requests, view.decode_tpots_s) == (3, (0.03,))


class Rank:
    """One of two tensor-parallel ranks. What the first one says, the second one hears."""

    world_size = 2

    def __init__(self, number: int, said: list[Any]) -> None:
        self.rank_in_group, self._said = number, said

    def broadcast_object(self, said: Any, src: int) -> Any:
        assert src == 0
        if self.rank_in_group == 0:
            self._said.append(said)
        else:
            assert said is None, "nobody asked it"
        return self._said[-1]


@pytest.mark.parametrize("plan", [{"a": 7}, {}, {"a": 0}])
@pytest.mark.parametrize("running", [True, False])
def test_tensor_parallel_ranks_compose_the_same_step(plan: dict[str, int], running: bool) -> None:
    """Else they hang. What a policy decides depends on the clock of its process."""
    said: list[Any] = []
    policies = [Policy(BatchPlan(plan, wait_s=0.0)), Policy(BatchPlan({"b": 1}))]
    engines = [Engine(policy, req("a", 10), req("b", 10)) for policy in policies]
    for number, engine in enumerate(engines):
        engine.attn_tp_group = Rank(number, said)
        engine.now_s += 0.001 * number
        engine.running.reqs = [req("d", 50)] if running else []
    for _ in range(3):
        results = [(engine.step(), engine.saw) for engine in engines]
        assert results[0] == results[1]
    assert not policies[1].views


@pytest.mark.parametrize(
    ("tokens", "plan", "saw"),
    [
        (40, {"a": 40}, (["a"], 64)),
        (100, {"a": 100}, (["a"], 128)),
        (100, {"a": 99}, (["a"], 64)),
        (100, {"a": 40}, None),
    ],
)
def test_a_prompt_ends_in_the_middle_of_a_page_and_a_chunk_does_not(
    tokens: int, plan: dict[str, int], saw: tuple[list[str], int] | None
) -> None:
    """SGLang counts whole pages: a prompt, or what is left of one, must not wait for ever for less than a page."""
    engine = Engine(Policy(BatchPlan(plan)), req("a", tokens))
    engine.page_size, engine.running.reqs = 64, [req("d", 50)]
    assert engine.step() == ("nothing" if saw is None else "composed")
    assert engine.saw == saw
