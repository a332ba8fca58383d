"""Several runs of one trace side by side, on as many cores as there are."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdplugins.config import Config
from pdplugins.interrupt import ctrl_c
from pdplugins.processes.child import stay_with
from pdplugins.processes.pools import finished
from pdplugins.report.ranking import Run, best_of
from pdplugins.sim.core.sampler import Sampler
from pdplugins.sim.core.settings import RunOutcome
from pdplugins.sim.report.misses import missed_of
from pdplugins.sim.report.series import series_of
from pdplugins.sim.run.simulate import simulate
from pdplugins.workloads.trace import TraceRequest

Shares = Callable[[Sequence[float]], None]
"""Called now and then with the share of each run that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: each config on the same trace with the same seed."""

    configs: dict[str, Config]
    trace: Sequence[TraceRequest]
    trace_name: str
    command: str
    seed: int = 0
    watch: bool = False
    """Whether to keep the data for a report's charts."""
    rate: float | None = None
    """Requests/s that the trace was scaled to."""


def run_one(
    plan: Plan, name: str, progress: Callable[[float], None], decision_log: Path | None = None
) -> tuple[Run, RunOutcome]:
    """Simulate one config of `plan`. `progress` is called with the share of the trace that has arrived."""
    span_s = plan.trace[-1].arrival_s or 1.0
    config = plan.configs[name]
    sampler = Sampler() if plan.watch else None
    result, outcome = simulate(
        config,
        plan.trace,
        trace_name=plan.trace_name,
        command=plan.command,
        seed=plan.seed,
        progress=lambda now_s: progress(min(now_s / span_s, 1.0)),
        sampler=sampler,
        decision_log=decision_log,
    )
    result.config["run"]["rate"] = plan.rate
    series = None if sampler is None else series_of(outcome, result, sampler.samples)
    return Run(name, result, series, missed_of(outcome, config)), outcome


def run_all(plan: Plan, jobs: int, shares: Shares = lambda _: None) -> list[Run]:
    """Simulate every config of `plan`, in its order. After Ctrl-C the result has only the runs done by then.

    :param jobs: most processes; no more start than there are runs, and the results do not depend on it.
    """
    if min(jobs, len(plan.configs)) > 1:
        return _parallel(plan, jobs, shares)
    runs: list[Run] = []
    for name in plan.configs:
        done = [1.0] * len(runs)
        run, _ = run_one(plan, name, lambda share, done=done: shares([*done, share]))  # type: ignore[misc]
        runs.append(run)
        if run.result.interrupted:
            break
    return runs


def as_json(runs: Sequence[Run]) -> str:
    """Return JSON with ``runs``, each a result with its ``name``, and ``best``, the best runs by metric."""
    rows = [{"name": run.name, **run.result.model_dump(mode="json")} for run in runs]
    return json.dumps({"runs": rows, "best": best_of({run.name: run.result for run in runs})}, indent=1) + "\n"


# --- more than one process ------------------------------------------------------------------------------------------

_shared: tuple[Plan, Any, Any] | None = None
"""In a child process: the plan, the share of each run that is done, and whether to stop."""


def _adopt(parent: int, *shared: Any) -> None:
    global _shared  # noqa: PLW0603 - a worker process has one plan
    _shared = shared
    stay_with(parent)  # at Ctrl-C it still gets what was done


def _work(index: int, name: str) -> Run | None:
    assert _shared is not None  # noqa: S101 - _adopt ran first
    plan, done, stop = _shared
    if stop.value:
        return None

    def progress(share: float) -> None:
        done[index] = share
        if stop.value:
            raise KeyboardInterrupt

    run, _ = run_one(plan, name, progress)
    done[index] = 1.0
    return run


def _parallel(plan: Plan, jobs: int, shares: Shares) -> list[Run]:
    context = multiprocessing.get_context("fork")  # a forked process has the trace already
    # Without locks, which a process that is killed would keep for ever.
    done, stop = context.Array("d", len(plan.configs), lock=False), context.Value("b", 0, lock=False)
    with ProcessPoolExecutor(min(jobs, len(plan.configs)), context, _adopt, (os.getpid(), plan, done, stop)) as pool:
        futures, stopped = finished(pool, _work, enumerate(plan.configs), lambda _: shares(done[:]))
        with ctrl_c(again=False):  # a key that is held down must not lose what was done: the runs end soon
            stop.value = int(stopped)
            runs = [_ran(future, stopped=stopped) for future in futures]
        return [run for run in runs if run is not None]


def _ran(future: Future[Run | None], *, stopped: bool) -> Run | None:
    """Return the run of a process; None where it had not begun, or has ended by the signal that stopped them all."""
    try:
        return future.result()
    except BrokenProcessPool:
        if stopped:
            return None
        raise
