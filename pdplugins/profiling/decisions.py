"""Measures the cost of one decision of each policy: ``pdplugins bench decisions``.

Every registered policy decides many times on a fleet whose loads change between its calls, and each call is timed. The
fleets are plain objects that are as cheap to read as possible, so the time is the policy's own. It is CPU time of the
thread, because a decision waits for nothing and other load on the machine must not count.

Machines differ in speed, and a busy one is slower. So a fixed loop of 1,000 steps is timed after each decision, and
costs are given as a number of such loops too. The bars are numbers of loops.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import thread_time_ns
from typing import Any

import numpy as np

from pdplugins.config import Config
from pdplugins.contracts.batching import BatchView, QueuedPrefill
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.flow import Waiting
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.power import GpuView
from pdplugins.contracts.request import Request
from pdplugins.contracts.router import Ending, HearsOutcomes, Outcome, PlansAhead
from pdplugins.contracts.workers import ANYTHING, Capabilities, Pool, Role, WorkerLoad
from pdplugins.registry import BUNDLE, Registration, Registry, default_registry
from pdplugins.runtime.assembly import build_deployment

WARM_UP = 50
"""Decisions that are made before the first one is timed."""
WAITING = 100_000
"""Requests that wait before the workers while a flow policy is timed."""
IN_SERVICE = 200
"""Requests that a router has placed and that have not ended."""
ROUNDS = 5
"""How often the same decisions are made, unless another number is asked for."""
LOOP_STEPS = 1000
"""Steps of the loop that measures the speed of the machine."""
BAR_LOOP_US = 30.0
"""Time of that loop on the machine for which the bars were set."""
BARS_US = {
    ("router", 64): 100.0,
    ("router", 4096): 1000.0,
    ("batch_scheduler", 64): 50.0,
    ("flow", 64): 50.0,
    ("flow", 4096): 50.0,
    ("planner", 64): 25_000.0,
    ("planner", 4096): 25_000.0,
    ("power", 64): 25_000.0,
    ("power", 4096): 25_000.0,
}
"""Most microseconds of the P99 of one decision on that machine, by kind and size."""
Timed = list[tuple[int, int]]
"""Nanoseconds of each decision of a round, and of the fixed loop after it."""


@dataclass(slots=True)
class FleetLoad:
    """Load of one worker, changed in place; see `pdplugins.types.LoadView`."""

    worker: str
    queued_requests: float = 0.0
    queued_tokens: float = 0.0
    running_requests: float = 0.0
    running_tokens: float = 0.0
    recent_ttft_s: float | None = None
    recent_tbt_s: float | None = None
    decode_requests: float | None = None
    decode_tokens: float | None = None
    prefill_tokens: float | None = None
    prefill_history_tokens: float | None = None


@dataclass(slots=True)
class FleetWorker:
    """One worker; see `pdplugins.types.WorkerView`."""

    id: str
    role: Role
    load: FleetLoad
    kv_capacity_tokens: int = 500_000
    tp: int | None = None
    free_kv_tokens: int | None = 250_000
    capabilities: Capabilities | None = ANYTHING
    cached_blocks: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one decision of one policy."""

    kind: str
    plugin: str
    workers: int
    """Workers to choose from. For a batch scheduler: prompts in the queue. For a power controller: GPUs."""
    p50_us: float
    p99_us: float
    loop_us: float
    """Median time of the fixed loop, timed after each of these decisions."""
    calls: int

    @property
    def p50_loops(self) -> float:
        """The median as a number of loops."""
        return round(self.p50_us / self.loop_us, 2)

    @property
    def p99_loops(self) -> float:
        """The P99 as a number of loops."""
        return round(self.p99_us / self.loop_us, 2)

    @property
    def bar_loops(self) -> float | None:
        """Most loops that the P99 may take; None without a bar."""
        bar_us = BARS_US.get((self.kind, self.workers))
        return None if bar_us is None else round(bar_us / BAR_LOOP_US, 2)

    def data(self) -> dict[str, Any]:
        """Return the row of a result file."""
        loops = {"p50_loops": self.p50_loops, "p99_loops": self.p99_loops, "bar_loops": self.bar_loops}
        return {**asdict(self), **loops}


def measure(
    sizes: tuple[int, ...] = (64, 4096),
    calls: int = 1000,
    seed: int = 0,
    registry: Registry | None = None,
    rounds: int = ROUNDS,
    progress: Callable[[float], None] = lambda share: None,
    failed: Callable[[Registration, Exception], None] | None = None,
) -> list[Cost]:
    """Return the cost of every registered policy, alone or a part of a bundle, at every size, in order of name.

    :param calls: timed decisions for each policy and size.
    :param seed: seed of the lengths and loads.
    :param rounds: how often the same decisions are made. The least time of each counts, because other programs on the
        machine only ever add to it.
    :param progress: is called with the share that is done.
    :param failed: is called with a plugin that cannot be timed, and why. It is left out then; without `failed` its
        error is raised.
    """
    registry = registry or default_registry()
    kinds = list(DECISIONS)
    known = sorted(policies(registry, failed), key=lambda r: (kinds.index(r.kind), r.name))
    asked = [(one, size) for one in known for size in ((64,) if one.kind == "batch_scheduler" else sizes)]
    # A slow spell of the machine lasts longer than a round of one policy, so the policies take turns.
    turns: list[list[Timed]] = [[] for _ in asked]
    left_out: list[Registration] = []
    for done, (timed, one) in enumerate(list(zip(turns, asked, strict=True)) * rounds, 1):
        if one[0] not in left_out:
            with _telling(failed, one[0], left_out):
                timed.append(_round(*one, calls, seed))
        progress(done / (rounds * len(asked)))
    return [_cost(*one, timed) for one, timed in zip(asked, turns, strict=True) if one[0] not in left_out]


def policies(registry: Registry, failed: Callable[[Registration, Exception], None] | None = None) -> list[Registration]:
    """Return the policies that can be timed: those registered alone, and the parts of bundles.

    :param failed: as that of `measure`.
    """
    known = registry.registrations()
    parts: list[Registration] = []
    for bundle in known:
        if bundle.kind == BUNDLE:
            with _telling(failed, bundle, []):
                parts += _parts(bundle)
    return [registration for registration in known if registration.kind in DECISIONS] + parts


@contextmanager
def _telling(
    failed: Callable[[Registration, Exception], None] | None, one: Registration, left_out: list[Registration]
) -> Iterator[None]:
    """Tell `failed` of whatever a plugin raises inside, and add it to those that are left out."""
    try:
        yield
    except Exception as error:
        if failed is None:
            raise
        left_out.append(one)
        failed(one, error)


def _parts(bundle: Registration) -> Iterator[Registration]:
    """Yield the parts that a bundle has by default, as if each were registered alone."""
    has = bundle.factory(bundle.settings(), build_deployment(Config()))
    for kind in DECISIONS:

        def factory(settings: Any, deployment: Deployment, kind: str = kind) -> Any:
            return getattr(bundle.factory(settings, deployment), kind)()

        if getattr(has, kind) is not None:
            yield replace(bundle, kind=kind, factory=factory)


def cost(registration: Registration, size: int, calls: int, seed: int = 0, rounds: int = ROUNDS) -> Cost:
    """Return the cost of one policy at one size. The parameters are those of `measure`."""
    return _cost(registration, size, [_round(registration, size, calls, seed) for _ in range(rounds)])


def _round(registration: Registration, size: int, calls: int, seed: int) -> Timed:
    """Time the decisions once."""
    known = build_deployment(Config())
    gpus = size * max(known.prefill_tp, known.decode_tp)
    deployment = replace(known, gpu_budget=max(gpus, 2))
    settings = {"budget_w": 1000.0 * gpus} if "budget_w" in registration.settings.model_fields else {}
    policy = registration.factory(registration.settings(**settings), deployment)
    return list(_timed(DECISIONS[registration.kind](policy, size, random.Random(seed)), calls))  # noqa: S311 - no secret


def _cost(registration: Registration, size: int, rounds: list[Timed]) -> Cost:
    """Return the cost by the least time of each decision in several rounds."""
    spent, loops = np.moveaxis(np.array(rounds).min(axis=0) / 1e3, 1, 0)
    figures = (*np.percentile(spent, (50, 99)), np.median(loops))
    p50_us, p99_us, loop_us = (round(float(value), 2) for value in figures)
    return Cost(registration.kind, registration.name, size, p50_us, p99_us, loop_us, len(spent))


def _timed(decisions: Iterator[Callable[[], object]], calls: int) -> Iterator[tuple[int, int]]:
    """Yield nanoseconds of each decision after the warm-up, and of the fixed loop after it.

    Garbage is collected only between decisions.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(WARM_UP + calls):
            decide = next(decisions)
            began = thread_time_ns()
            decide()
            took = thread_time_ns() - began
            if index >= WARM_UP:
                yield took, loop_ns()
            if not index % 100:
                gc.collect(0)
    finally:
        if enabled:
            gc.enable()


def loop_ns() -> int:
    """Return the nanoseconds of a fixed loop, which tells how fast the machine is now."""
    began, total = thread_time_ns(), 0
    for step in range(LOOP_STEPS):
        total += step
    return thread_time_ns() - began


def _router(router: Any, size: int, rng: random.Random) -> Iterator[Callable[[], object]]:
    """Yield decisions on new prompts, prompts with cached blocks and rounds of sessions; complete open placements."""
    workers = tuple(_worker(index, rng) for index in range(size))
    hears = router if isinstance(router, HearsOutcomes) else None
    ahead = router if isinstance(router, PlansAhead) else None
    in_service: deque[Request] = deque()
    now_s = 0.0
    for turn in range(10**9):
        now_s += rng.expovariate(10.0)
        if hears is not None and len(in_service) >= IN_SERVICE:
            hears.on_ended(in_service.popleft(), Outcome(Ending.FINISHED, rng.randrange(1, 800)))
        for worker in rng.sample(workers, 4):
            _change(worker, rng)
        if ahead is not None and not turn % 10:
            ahead.plan_ahead(workers, now_s)
        session = f"s{rng.randrange(1000)}" if turn % 4 == 3 else None
        history = rng.randrange(8000) if session else 0
        prompt = history + int(rng.lognormvariate(6.5, 1.0)) + 1
        request = Request(
            str(turn), now_s, prompt, rng.randrange(1, 800), history, session,
            rng.choice(workers).id if session else None,
            tuple(rng.randrange(50) for _ in range(8)) if turn % 4 == 1 else (),
        )  # fmt: skip

        in_service.append(request)

        def decide(request: Request = request, now_s: float = now_s) -> None:
            placement = router.on_arrival(request, workers, now_s)
            if placement.second is None:
                router.on_prefill_done(request, placement, workers, now_s)

        yield decide
        if hears is None:
            in_service.clear()


def _flow(flow: Any, size: int, rng: random.Random) -> Iterator[Callable[[], object]]:
    """One request comes and one may go on, `WAITING` others in the queue and `size` workers behind it."""
    workers = tuple(_worker(index, rng) for index in range(size))
    now_s, names = 0.0, iter(range(10**9))

    def waiting() -> Waiting:
        request = Request(str(next(names)), now_s, int(rng.lognormvariate(6.5, 1.0)) + 1)
        return Waiting(request, now_s, now_s + 2.0)

    for _ in range(WAITING):
        flow.on_arrival(waiting(), now_s)
    while True:
        now_s += 1e-3

        def decide(new: Waiting = waiting(), now_s: float = now_s) -> None:  # noqa: B008 - each has its own
            flow.on_arrival(new, now_s)
            flow.next(workers, now_s)

        yield decide


def _worker(index: int, rng: random.Random) -> FleetWorker:
    name = f"w{index}"
    worker = FleetWorker(name, Role.PREFILL if index % 2 else Role.DECODE, FleetLoad(name))
    worker.cached_blocks.update(rng.randrange(50) for _ in range(10))
    _change(worker, rng)
    return worker


def _change(worker: FleetWorker, rng: random.Random) -> None:
    load = worker.load
    load.queued_requests = rng.randrange(8)
    load.queued_tokens = load.queued_requests * 900
    load.running_requests = rng.randrange(100)
    load.running_tokens = load.running_requests * 1200
    load.recent_ttft_s, load.recent_tbt_s = rng.uniform(0.1, 3.0), rng.uniform(0.01, 0.1)


def _batches(scheduler: Any, size: int, rng: random.Random) -> Iterator[Callable[[], object]]:
    """Yield decisions on steps of an instance. Its queue keeps `size` prompts, as new ones replace composed ones."""
    now_s, names = 0.0, iter(range(10**9))

    def prompt() -> QueuedPrefill:
        tokens = int(rng.lognormvariate(6.5, 1.0)) + 1
        return QueuedPrefill(Request(str(next(names)), now_s, tokens), tokens, now_s)

    queue = [prompt() for _ in range(size)]
    while True:
        view = BatchView(tuple(queue), rng.randrange(100), rng.randrange(100_000))

        chosen: list[Any] = []

        def decide(view: BatchView = view, now_s: float = now_s, chosen: list[Any] = chosen) -> None:
            chosen.append(scheduler.next_batch(view, now_s))

        yield decide
        took_s = 0.05
        for plan in chosen:
            scheduler.on_step(view, plan, took_s)
            queue = [waiting for waiting in queue if waiting.request.id not in plan.prefill_tokens]
        now_s += took_s
        queue.extend(prompt() for _ in range(size - len(queue)))


def _planner(planner: Any, size: int, rng: random.Random) -> Iterator[Callable[[], object]]:
    now_s = 0.0
    while True:
        now_s += planner.interval_s
        view = _view(now_s, size, rng)
        yield lambda view=view: planner.plan(view)  # type: ignore[misc]


def _power(controller: Any, size: int, rng: random.Random) -> Iterator[Callable[[], object]]:
    now_s = 0.0
    gpus = tuple(GpuView(index, Role.PREFILL if index % 2 else Role.DECODE, 400.0, 600.0) for index in range(size))
    while True:
        now_s += controller.interval_s
        view = _view(now_s, size, rng)
        yield lambda view=view: controller.control(gpus, view)  # type: ignore[misc]


def _view(now_s: float, size: int, rng: random.Random) -> PlannerView:
    loads = tuple(WorkerLoad(f"w{index}", rng.randrange(8), 5000.0, 50.0, 60_000.0) for index in range(size // 2))
    pool = Pool(size // 2, loads=loads)
    traffic = Traffic(5.0, rng.randrange(20, 60), 1000.0, 200.0, rng.uniform(0.1, 3.0), rng.uniform(0.01, 0.1))
    return PlannerView(now_s, traffic, pool, pool)


DECISIONS: dict[str, Callable[[Any, int, random.Random], Iterator[Callable[[], object]]]] = {
    "router": _router,
    "flow": _flow,
    "batch_scheduler": _batches,
    "planner": _planner,
    "power": _power,
}
"""What is timed for each kind of policy."""
