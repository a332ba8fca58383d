"""The journal: what is kept of each kind, what it costs when nothing is kept, and that it never raises."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from pdplugins.config import Choice, Config
from pdplugins.contracts.kinds import Kind
from pdplugins.runtime.decision import Decision, Fault
from pdplugins.runtime.decision_log import DecisionLog
from pdplugins.runtime.decision_reader import Entry, read
from pdplugins.runtime.journal import Sampling, StandardJournal
from pdplugins.runtime.metrics import Metrics
from pdplugins.runtime.records import MOST_ITEMS, MOST_TEXT, WHOLE
from pdplugins.runtime.router import SafeRouter
from pdplugins.runtime.telling import told
from pdplugins.types import (
    BatchPlan,
    BatchView,
    Deployment,
    Flip,
    Go,
    GpuView,
    Hold,
    Placement,
    PlannerView,
    Pool,
    PowerPlan,
    QueuedPrefill,
    Refuse,
    Request,
    Role,
    ScalePlan,
    Waiting,
    WorkerLoad,
)

VIEW = PlannerView(1.0, None, Pool(1), Pool(1))
REQUEST = Request("r1", 0.5, 100, session="alice", bound_worker="d0", blocks=(1, 2, 3))
PLACED = Decision(Kind.ROUTER, Placement("p0", "d0", 100, "least loaded"), None, 1e-5)


class Worker:
    """A worker that a router sees."""

    tp = 2
    kv_capacity_tokens = 1000
    free_kv_tokens = 400
    capabilities = None
    cached_blocks = frozenset({1, 2})

    def __init__(self, name: str, role: Role = Role.PREFILL) -> None:
        self.id = name
        self.role = role
        self.load = WorkerLoad(name, 1, 50, 2, 60, recent_tbt_s=0.02)


def seen_by_router(request: Request = REQUEST, workers: int = 2) -> dict[str, Any]:
    views = tuple(Worker(f"p{n}") for n in range(workers - 1))
    return {"request": request, "workers": (*views, Worker("d0", Role.DECODE)), "now_s": 0.5}


Open = Callable[..., tuple[StandardJournal, Callable[[], list[Entry]]]]


@pytest.fixture
def journal(tmp_path: Path, config: Config, deployment: Deployment) -> Open:
    """Open a journal with a log; the second value reads what was kept."""

    def opened(**options: Any) -> tuple[StandardJournal, Callable[[], list[Entry]]]:
        log = DecisionLog(tmp_path / "d", config, deployment, ScalePlan(1, 1, "start"))
        return StandardJournal(log, **options), lambda: read(tmp_path / "d")[0].entries

    return opened


def test_planners_and_power_are_kept_whole_and_read_back_with_their_types(journal: Open) -> None:
    writing, kept = journal(sampling=Sampling(every=1000, most_per_s=1))
    gpus = (GpuView(0, Role.PREFILL, 310.5, 400.0), GpuView(1, Role.DECODE, 200.0, 400.0))
    power = PowerPlan({0: 500.0, 1: 300.0}, (Flip(1, Role.PREFILL),), "prefill is short")
    for _ in range(50):
        writing.decided(Decision(Kind.PLANNER, ScalePlan(2, 1, "more")), {"view": VIEW})
        writing.decided(Decision(Kind.POWER, power), {"gpus": gpus, "view": VIEW})
    writing.decided(Decision(Kind.POWER, None, Fault.POLICY_ERROR), {"gpus": gpus, "view": VIEW})
    entries = kept()
    assert len(entries) == 101
    assert entries[1] == Entry(
        Kind.POWER, 1, entries[1].at, {"gpus": gpus, "view": VIEW, "budget_w": None}, power, None, 0.0
    )
    assert entries[-1].answer is None
    assert [entry.number for entry in entries if entry.kind is Kind.PLANNER] == list(range(1, 51))


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in WHOLE])
@pytest.mark.parametrize("asks_first", [True, False])
def test_of_the_others_one_in_so_many_is_kept_with_its_number(journal: Open, kind: Kind, asks_first: bool) -> None:
    writing, kept = journal(sampling=Sampling(every=10, most_per_s=1000))
    for _ in range(35):
        if not asks_first or not writing.skips(kind, 1e-6):
            writing.decided(Decision(kind, None), {})
    assert [entry.number for entry in kept()] == [10, 20, 30]
    assert writing.decisions(kind) == 35


def test_every_refusal_and_every_fault_is_kept(journal: Open) -> None:
    writing, kept = journal(sampling=Sampling(every=1000, most_per_s=1000))
    writing.decided(Decision(Kind.FLOW, Go("r1")), {"waiting": 1})
    writing.decided(Decision(Kind.FLOW, Refuse("r2", 3.0, "full")), {"waiting": 9, "head": Waiting(REQUEST, 0.5, 2.5)})
    writing.decided(Decision(Kind.FLOW, Hold(7.0)), {"waiting": 9})
    writing.decided(Decision(Kind.FLOW, Hold(), Fault.POLICY_ERROR), {"waiting": 9})
    refused, failed = kept()
    assert refused.answer == {"do": "refuse", "request_id": "r2", "retry_after_s": 3.0, "reason": "full"}
    assert (refused.number, refused.seen["waiting"], refused.seen["head"]["request"]["id"]) == (2, 9, "r1")
    assert (failed.number, failed.fault) == (4, "policy_error")


def test_no_second_sees_more_lines_than_allowed_whatever_clients_do(journal: Open) -> None:
    now_s = 0.0
    writing, kept = journal(sampling=Sampling(every=1, most_per_s=5), clock=lambda: now_s)
    for second in range(3):
        now_s = float(second)
        for number in range(100):
            writing.decided(Decision(Kind.FLOW, Refuse(f"r{number}", 1.0)), {})
    assert [entry.number for entry in kept()] == [*range(1, 6), *range(101, 106), *range(201, 206)]


def test_a_routers_line_says_what_it_saw_of_the_request_and_each_worker(journal: Open) -> None:
    writing, kept = journal(sampling=Sampling(every=1))
    writing.decided(PLACED, seen_by_router())
    (entry,) = kept()
    assert entry.answer == {"first": "p0", "second": "d0", "split": 100, "reason": "least loaded"}
    request = entry.seen["request"]
    assert (request["id"], request["prompt_tokens"], request["bound_worker"], request["blocks"]) == ("r1", 100, "d0", 3)
    assert request["session"] != "alice"
    assert "predicted_output_tokens" not in request
    assert entry.seen["workers"][0] == {
        "id": "p0",
        "role": "prefill",
        "kv_capacity_tokens": 1000,
        "tp": 2,
        "free_kv_tokens": 400,
        "cached_blocks": 2,
        "load": {
            "queued_requests": 1,
            "queued_tokens": 50,
            "running_requests": 2,
            "running_tokens": 60,
            "recent_tbt_s": 0.02,
        },
    }


def test_a_batch_schedulers_line_sums_up_the_queue(journal: Open) -> None:
    writing, kept = journal(sampling=Sampling(every=1))
    queue = tuple(QueuedPrefill(REQUEST, 10, 0.0) for _ in range(5000))
    plan = BatchPlan({f"r{n}": 1 for n in range(5000)}, 0.5, "all")
    writing.decided(Decision(Kind.BATCH_SCHEDULER, plan), {"view": BatchView(queue, 3, 900), "now_s": 1.0})
    (entry,) = kept()
    view = entry.seen["view"]
    assert (view["queue"], view["queued_tokens"], view["decode_requests"]) == (5000, 50_000, 3)
    assert len(entry.answer["prefill_tokens"]) == MOST_ITEMS
    assert len(json.dumps(view)) < 3000


@pytest.mark.moderate
@given(name=st.text(max_size=2000), session=st.none() | st.text(max_size=2000), reason=st.text(max_size=2000))
def test_no_client_makes_a_line_long_or_prints_control_characters(
    tmp_path_factory: pytest.TempPathFactory, name: str, session: str | None, reason: str
) -> None:
    path = tmp_path_factory.mktemp("journal") / "d"
    deployment = Deployment(None, None, 8, 1, 2, 30.0, 256)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdplugins.runtime.decision_log._limits", lambda deployment: {})
        writing = StandardJournal(DecisionLog(path, Config(), deployment), sampling=Sampling(every=1))
        request = Request(name, 0.0, 5, session=session, blocks=tuple(range(10_000)))
        writing.decided(Decision(Kind.ROUTER, Placement("p0", "d0", 5, reason)), seen_by_router(request, 500))
        writing.close()
    (entry,) = read(path)[0].entries
    assert len(entry.seen["workers"]) == MOST_ITEMS
    assert "d0" in [worker["id"] for worker in entry.seen["workers"]]  # who was chosen is never left out
    assert entry.seen["request"]["id"].isprintable()
    assert len(entry.seen["request"]["id"]) <= MOST_TEXT
    assert len(path.read_text().splitlines()[1]) < 40_000


def test_a_disk_error_is_counted_and_logged_once_and_the_log_goes_on(
    journal: Open, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    writing, kept = journal(metrics=[Metrics(Kind.PLANNER, registry)])
    assert writing._log is not None
    good = writing._log._file
    with Path("/dev/full").open("ab", buffering=0) as full:
        writing._log._file = full
        for _ in range(3):
            writing.decided(Decision(Kind.PLANNER, ScalePlan(2, 1, "a")), {"view": VIEW})
    writing._log._file = good
    writing.decided(Decision(Kind.PLANNER, ScalePlan(2, 1, "b")), {"view": VIEW})
    assert writing.faults[Kind.PLANNER, Fault.DECISION_LOG] == 3
    assert registry.get_sample_value("pdplugins_planner_errors_total", {"kind": "decision_log"}) == 3
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert [entry.number for entry in kept()] == [4]


def test_an_object_that_cannot_be_written_is_a_fault_and_nothing_raises(
    journal: Open, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        @property
        def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
            raise RuntimeError("no")

    writing, kept = journal(sampling=Sampling(every=1))
    writing.decided(Decision(Kind.PLANNER, ScalePlan(1, 1, "x", {"a": Odd()})), {"view": VIEW})  # type: ignore[dict-item]
    writing.decided(Decision(Kind.ROUTER, None), {"request": Odd(), "workers": [Odd()]})
    assert sum(writing.faults.values()) == 2
    assert kept() == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_another_run_that_cannot_be_written_is_a_fault_and_the_run_before_goes_on(
    journal: Open, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """Its decisions keep their numbers, so that none seems to be missing."""
    writing, kept = journal()
    for reason in ("a", "b"):
        writing.decided(Decision(Kind.POWER, PowerPlan({0: 400.0}, reason=reason)), {"gpus": (), "view": VIEW})
    writing.begin(Config(planner=Choice(name="no-such-planner")), deployment)
    writing.decided(Decision(Kind.POWER, PowerPlan({0: 400.0}, reason="c")), {"gpus": (), "view": VIEW})
    assert writing.faults[Kind.POWER, Fault.DECISION_LOG] == 1
    assert "decision log not written" in caplog.text
    assert [entry.number for entry in kept()] == [1, 2, 3]


def test_without_a_log_only_planners_and_power_are_handed_over() -> None:
    journal = StandardJournal()
    assert [kind for kind in Kind if not journal.skips(kind, 0.0)] == [Kind.PLANNER, Kind.POWER]


def test_decisions_that_are_not_kept_are_in_the_metrics() -> None:
    registry = CollectorRegistry()
    journal = StandardJournal(metrics=[Metrics(Kind.ROUTER, registry)])
    for _ in range(7):
        assert journal.skips(Kind.ROUTER, 3e-6)
    journal.decided(PLACED, seen_by_router())
    journal.fault(Kind.ROUTER, Fault.UNKNOWN_WORKER, "d9 takes no work")

    def value(name: str, /, **labels: str) -> float | None:
        return registry.get_sample_value("pdplugins_router_" + name, labels)

    assert value("decisions_total") == 8
    assert value("errors_total", kind="unknown_worker") == 1
    assert value("step_seconds_bucket", le="5e-06") == 7
    assert value("step_seconds_count") == 8


@pytest.mark.moderate
def test_a_decision_that_is_not_kept_costs_a_small_part_of_one_that_is(
    tmp_path: Path, config: Config, deployment: Deployment
) -> None:
    """Compared in one run, the fastest of several turns of each, by processor time."""

    class Router:
        def on_arrival(self, *_: object) -> Placement:
            return PLACED.answer

        on_prefill_done = on_arrival

    def added_s(journal: StandardJournal | None) -> float:
        router = SafeRouter(Router(), deployment, journal=journal)
        started = process_time()
        for _ in range(2000):
            router.on_arrival(REQUEST, workers, 0.5, usable)
        return (process_time() - started) / 2000

    def journal(name: str, every: int) -> StandardJournal:
        log = DecisionLog(tmp_path / name, config, deployment)
        metrics = [Metrics(Kind.ROUTER, CollectorRegistry())]
        return StandardJournal(log, metrics, sampling=Sampling(every, most_per_s=10**9))

    workers, usable = seen_by_router()["workers"], {"p0", "d0"}
    skips, keeps = journal("skips", 10**9), journal("keeps", 1)
    turns = [(added_s(None), added_s(skips), added_s(keeps)) for _ in range(5)]
    bare_s, skipped_s, kept_s = map(min, zip(*turns, strict=True))
    assert skipped_s - bare_s < (kept_s - bare_s) / 10
    assert read(tmp_path / "skips")[0].entries == []
    assert len(read(tmp_path / "keeps")[0].entries) == 5 * 2000


def test_a_batch_schedulers_line_says_the_tightest_tpot_that_decodes_ask_for(journal: Open) -> None:
    writing, kept = journal(sampling=Sampling(every=1))
    seen = BatchView((QueuedPrefill(REQUEST, 10, 0.0),), 3, 900, (0.05, 0.03))
    writing.decided(Decision(Kind.BATCH_SCHEDULER, BatchPlan({})), {"view": seen, "now_s": 1.0})
    (entry,) = kept()
    assert entry.seen["view"]["own_tpot_s"] == 0.03
    assert told(entry)[1][0][1].endswith("3 decode (900 tokens of context), tightest own TPOT 0.03 s")
