"""Simulates many candidates on several traces, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pdplugins.errors import PdpluginsError
from pdplugins.processes.child import stay_with
from pdplugins.processes.pools import finished
from pdplugins.results import Result
from pdplugins.sim.report.misses import missed_of
from pdplugins.sim.run.simulate import simulate
from pdplugins.studies.advise.candidates import Candidate
from pdplugins.verdict import Missed
from pdplugins.workloads.trace import TraceRequest

Traces = Mapping[str, Sequence[TraceRequest]]
Done = Callable[[int, int], None]
"""Called with the number of runs that are done, and that of all."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a candidate did on one trace."""

    candidate: Candidate
    trace: str
    """The name of the trace."""
    requests: int
    attainment: float
    gpus: float
    """GPUs held on the average of the run."""
    goodput: float
    """Requests/s inside both objectives."""
    strain: float
    """P99 of TTFT or TPOT over its objective, whichever is larger: it decides between equal attainments."""
    missed: Missed


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A candidate that cannot run, and why."""

    candidate: Candidate
    why: str


Job = tuple[Candidate, str]
"""A candidate, and the name of the trace."""


class Race:
    """Processes that simulate candidates on given traces: at most `jobs`, and never more than there have been runs."""

    def __init__(self, traces: Traces, jobs: int, seed: int) -> None:
        self._traces, self._jobs, self._seed = traces, jobs, seed
        self._context = multiprocessing.get_context("fork")  # a forked process has the traces already
        self._stop = self._context.Value("b", 0, lock=False)  # a process that is killed would keep a lock
        self._pool: ProcessPoolExecutor | None = None
        self._processes = 0
        self.left_out: list[LeftOut] = []

    def run(self, jobs: Sequence[Job], done: Done = lambda *_: None) -> list[Score]:
        """Simulate every job; the scores come in the order of the jobs. Raises KeyboardInterrupt after Ctrl-C.

        A candidate that cannot run is left out, and noted.
        """
        if not jobs:
            done(0, 0)
            return []
        pool = self._pool_for(len(jobs))
        futures, stopped = finished(
            pool, _simulated, ((*job, self._seed) for job in jobs), lambda left: done(len(jobs) - left, len(jobs))
        )
        if stopped:
            raise KeyboardInterrupt
        results = [future.result() for future in futures]
        self.left_out += [result for result in results if isinstance(result, LeftOut)]
        return [result for result in results if isinstance(result, Score)]

    def _pool_for(self, runs: int) -> ProcessPoolExecutor:
        """Return a pool with a process for each of `runs`, up to the most: a pool starts all its processes at once."""
        wanted = min(self._jobs, runs)
        if self._pool is None or self._processes < wanted:
            self.close()
            self._pool = ProcessPoolExecutor(wanted, self._context, _adopt, (os.getpid(), self._traces, self._stop))
            self._processes = wanted
        return self._pool

    def close(self) -> None:
        """End the processes once they have done their runs."""
        if self._pool is not None:
            self._pool.shutdown()

    def abandon(self) -> None:
        """Stop every run, and drop those that have not begun."""
        self._stop.value = 1
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def race(traces: Traces, jobs: int, seed: int) -> Iterator[Race]:
    """Yield at most `jobs` processes that have `traces`."""
    running = Race(traces, jobs, seed)
    try:
        yield running
    except BaseException:
        running.abandon()
        raise
    running.close()


# --- in a child process -----------------------------------------------------------------------------------------------

_shared: tuple[Traces, Any] | None = None


def _adopt(parent: int, traces: Traces, stop: Any) -> None:
    global _shared  # noqa: PLW0603 - a worker process has one set of traces
    _shared = traces, stop
    stay_with(parent)


def _simulated(candidate: Candidate, trace: str, seed: int) -> Score | LeftOut:
    assert _shared is not None  # noqa: S101 - _adopt ran first
    traces, stop = _shared

    def beat(_: float) -> None:
        if stop.value:
            raise KeyboardInterrupt

    requests = traces[trace]
    try:
        result, outcome = simulate(
            candidate.config, requests, trace_name=trace, command="advise", seed=seed, progress=beat
        )
    except PdpluginsError as error:
        return LeftOut(candidate, str(error))
    return Score(
        candidate=candidate,
        trace=trace,
        requests=result.requests.total,
        attainment=result.metrics.slo_attainment or 0.0,
        gpus=3600 * result.metrics.gpu_hours / max(result.speed.duration_s, 1e-9),
        goodput=result.metrics.goodput_requests_per_s,
        strain=_strain(result),
        missed=missed_of(outcome, candidate.config),
    )


def _strain(result: Result) -> float:
    metrics = result.metrics
    slo: dict[str, float] = result.config["slo"]
    times = (metrics.ttft_s.p99, slo["ttft_s"]), (metrics.tpot_s.p99, slo["tpot_s"])
    return max((value or 0.0) / objective for value, objective in times)
