"""Simulates a recording: with the workers that there were, with fixed pools, and under planners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdplugins.config import Config, parse
from pdplugins.contracts.deployment import Deployment
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.planner import PlannerView, ScalePlan
from pdplugins.errors import ConfigError
from pdplugins.results import Metrics, Requests, Spread
from pdplugins.runtime.assembly import build_deployment
from pdplugins.runtime.policies import build_policies
from pdplugins.sim.core.records import Record
from pdplugins.sim.core.simulation import Simulation
from pdplugins.sim.report.misses import missed_of
from pdplugins.sim.run.compare import Plan, run_all
from pdplugins.sim.run.running import arrival
from pdplugins.sim.run.setup import sim_settings
from pdplugins.sim.run.simulate import seeded, summarise
from pdplugins.studies.advise.candidates import thinned
from pdplugins.studies.advise.traffic import part_of
from pdplugins.studies.backtest.recording import Latencies, Pools, Recording
from pdplugins.verdict import Missed
from pdplugins.workloads.trace import TraceRequest

PART = 1_500
"""Requests on which every split is tried, to find the best one for each number of GPUs."""
MOST_SPLITS, MOST_SIZES = 96, 6
"""Splits that are tried on a part, and numbers of GPUs whose best split is tried on everything."""
MOST_COUNTS = 256
"""Numbers of workers of a role that splits are made of, before they are thinned out."""
TICK_S = 1.0
RECORDED = "as it ran"

Done = Callable[[Sequence[float]], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to serve the recording, simulated."""

    name: str
    pools: str
    """In words: the pools, or those at start."""
    requests: Requests
    metrics: Metrics
    duration_s: float
    missed: Missed

    @property
    def gpus(self) -> float:
        """Return the GPUs held on the average."""
        return 3600 * self.metrics.gpu_hours / max(self.duration_s, 1e-9)

    @property
    def attainment(self) -> float:
        """Return the share of requests inside both objectives."""
        return self.metrics.slo_attainment or 0.0


@dataclass(frozen=True, slots=True)
class Backtest:
    """Everything that was simulated."""

    recording: Recording
    config: Config
    """Where profile, objectives and sizes of workers are from."""
    router: str
    ran: Trial | None
    """None where it is not known which workers there were."""
    ran_itl: Spread
    """Time per output token of what ran, over the answers that have one: of more than one token."""
    ran_by_part: tuple[Latencies, ...]
    fixed: tuple[Trial, ...]
    """The best split of each number of GPUs, the fewest first."""
    planned: tuple[Trial, ...]

    @property
    def rows(self) -> list[Trial]:
        """Return everything that was tried."""
        return [*([self.ran] if self.ran is not None else []), *self.planned, *self.fixed]


def backtest(
    recording: Recording,
    configs: Mapping[str, Config],
    router: str,
    *,
    seed: int,
    jobs: int,
    done: Done = lambda _: None,
) -> Backtest:
    """Simulate `recording` in every way. Raises ConfigError.

    :param configs: by name; the first one says the profile, the objectives and the sizes of workers.
    :param router: that of what ran, of fixed pools, and of configs that have a planner.
    :param done: called with the shares of the four stages that are done: what ran, splits, fixed pools, configs.
    """
    base = _fixed(next(iter(configs.values())), router)
    shares = [0.0] * 4

    def stage(index: int) -> Callable[[Sequence[float]], None]:
        def told(parts: Sequence[float]) -> None:
            shares[index] = sum(parts) / max(len(parts), 1)
            done(shares)

        return told

    ran, itl, by_part = _as_it_ran(recording, base, seed) if recording.pools else (None, Spread.of([]), ())
    stage(0)([1.0])
    fixed = _sweep(recording, base, seed, jobs, stage(1), stage(2))
    started = {name: _started(config, recording.pools, router) for name, config in configs.items()}
    planned = _runs(started, recording.requests, recording.name, seed, jobs, stage(3))
    return Backtest(recording, base, router, ran, itl, by_part, tuple(fixed), tuple(planned))


def _fixed(config: Config, router: str) -> Config:
    """Return `config` with fixed pools behind `router`, and nothing else of ours."""
    data = config.model_dump(mode="json")
    data |= dict.fromkeys(("planner", "bundle", "flow", "batch_scheduler", "power"))
    return parse(data | {"router": {"name": router}}, "backtest")


def _started(config: Config, pools: Sequence[Pools], router: str) -> Config:
    """Return `config` with the pools that the recording began with, as far as they fit its GPUs.

    Its planner is added to what runs, so routing and batches stay as they were; one without a planner is as written.
    """
    data = config.model_dump(mode="json")
    if config.planner is not None and config.bundle is None:
        data |= {"router": {"name": router}, "batch_scheduler": None, "flow": None}
    planned = config.choice(Kind.PLANNER) is not None or config.bundle is not None
    fits = pools and build_deployment(config).gpus(pools[0].prefill, pools[0].decode) <= config.deployment.gpu_budget
    if planned and fits:
        data["deployment"]["prefill"]["replicas"] = pools[0].prefill
        data["deployment"]["decode"]["replicas"] = pools[0].decode
    return parse(data, "backtest")


# --- what ran ---------------------------------------------------------------------------------------------------------


class RecordedPools:
    """A planner that wants what there was: workers are asked for as long before as they take to start."""

    interval_s = TICK_S

    def __init__(self, pools: Sequence[Pools], startup_s: float) -> None:
        self._pools = pools
        self._startup_s = startup_s

    def plan(self, view: PlannerView) -> ScalePlan:
        """Return the pools of the recording."""
        soon = [pools for pools in self._pools if view.now_s < pools.at_s <= view.now_s + self._startup_s]
        wanted = [self._at(view.now_s), *soon]
        prefill, decode = max(pools.prefill for pools in wanted), max(pools.decode for pools in wanted)
        return ScalePlan(prefill, decode, "as recorded")

    def _at(self, now_s: float) -> Pools:
        return next((pools for pools in reversed(self._pools) if pools.at_s <= now_s), self._pools[0])


def _as_it_ran(recording: Recording, base: Config, seed: int) -> tuple[Trial, Spread, tuple[Latencies, ...]]:
    """Simulate the workers that there were. Raises ConfigError where the simulator has none such."""
    pools = recording.pools
    sizes = build_deployment(base)
    most = max(sizes.gpus(held.prefill, held.decode) for held in pools)
    data = base.model_dump(mode="json")
    data["deployment"]["gpu_budget"] = max(2 * most, sizes.gpu_budget)  # old workers drain while new ones start
    data["deployment"]["prefill"]["replicas"] = pools[0].prefill
    data["deployment"]["decode"]["replicas"] = pools[0].decode
    config = seeded(parse(data, RECORDED), seed)
    deployment = build_deployment(config)
    outcome = _simulation(config, deployment, pools).run(map(arrival, recording.requests), lambda _: None)
    requests, metrics = summarise(outcome, deployment.slo)
    words = str(pools[0]) if len(pools) == 1 else f"from {pools[0]}"
    ran = Trial(RECORDED, words, requests, metrics, outcome.duration_s, missed_of(outcome, config))
    itl = Spread.of([one.tpot_s for one in outcome.records if one.tpot_s is not None and one.osl_tokens > 1])
    return ran, itl, tuple(_by_part(outcome.records, recording.by_part))


def _simulation(config: Config, deployment: Deployment, pools: Sequence[Pools]) -> Simulation:
    router = build_policies(config, deployment).router()
    assert router is not None  # noqa: S101 - the config names one
    planner = None if len(pools) == 1 else RecordedPools(pools, deployment.startup_s)
    settings = sim_settings(config, deployment, planned=planner is not None)
    return Simulation(deployment, settings, router, planner=planner)


def _by_part(records: Sequence[Record], recorded: Sequence[Latencies]) -> Iterator[Latencies]:
    """Yield the latencies of the simulated requests that came in each part of the recording."""
    good = [(r.arrival_s, r.ttft_s, r.tpot_s, r.osl_tokens - 1) for r in records if r.error is None]
    table = np.array(good, dtype=float).reshape(len(good), 4)
    for part in recorded:
        rows = table[(table[:, 0] >= part.start_s) & (table[:, 0] < part.end_s)]
        gaps = float(rows[:, 3].sum())
        yield Latencies(
            part.start_s,
            part.end_s,
            len(rows),
            float(rows[:, 1].mean()) if len(rows) else None,
            float((rows[:, 2] * rows[:, 3]).sum() / gaps) if gaps else None,
        )


# --- fixed pools, and configs -----------------------------------------------------------------------------------------


def _runs(
    configs: Mapping[str, Config], requests: Sequence[TraceRequest], trace: str, seed: int, jobs: int, done: Done
) -> list[Trial]:
    """Simulate each config. Raises KeyboardInterrupt after Ctrl-C."""
    runs = run_all(Plan(dict(configs), requests, trace, "backtest", seed), jobs, done)
    if len(runs) < len(configs) or any(run.result.interrupted for run in runs):
        raise KeyboardInterrupt
    return [
        Trial(
            name=run.name,
            pools=_pools_of(configs[run.name]),
            requests=run.result.requests,
            metrics=run.result.metrics,
            duration_s=run.result.speed.duration_s,
            missed=run.missed,
        )
        for run in runs
        if run.missed is not None
    ]


def _pools_of(config: Config) -> str:
    pools = config.deployment
    start = "" if config.choice(Kind.PLANNER) is None else "from "
    return f"{start}{pools.prefill.replicas}P{pools.decode.replicas}D"


def _sweep(recording: Recording, base: Config, seed: int, jobs: int, first: Done, second: Done) -> list[Trial]:
    """Return the best split for each of a few numbers of GPUs."""
    cells = {f"fixed {prefill}P{decode}D": _with(base, prefill, decode) for prefill, decode in _splits(base)}
    part = part_of(recording.requests, PART)
    tried = _runs(cells, part, recording.name, seed, jobs, first)
    best: dict[int, Trial] = {}
    for trial in sorted(tried, key=lambda trial: (trial.attainment, -(trial.metrics.ttft_s.p99 or np.inf))):
        pools = cells[trial.name].deployment
        best[build_deployment(base).gpus(pools.prefill.replicas, pools.decode.replicas)] = trial
    sizes = sorted(best)
    kept = sorted({sizes[round(place)] for place in np.linspace(0, len(sizes) - 1, min(MOST_SIZES, len(sizes)))})
    return _runs(
        {best[gpus].name: cells[best[gpus].name] for gpus in kept},
        recording.requests,
        recording.name,
        seed,
        jobs,
        second,
    )


def _splits(base: Config) -> list[tuple[int, int]]:
    """Return the pools within the GPUs, evenly thinned out where there are very many."""
    deployment = build_deployment(base)
    budget, prefill_tp, decode_tp = deployment.gpu_budget, deployment.prefill_tp, deployment.decode_tp
    found = [
        (prefill, decode)
        for decode in thinned(range(1, (budget - prefill_tp) // decode_tp + 1), MOST_COUNTS)
        for prefill in thinned(range(1, (budget - decode * decode_tp) // prefill_tp + 1), MOST_COUNTS)
    ]
    if not found:
        raise ConfigError(
            f"backtest: no prefill and decode worker of TP {prefill_tp} and {decode_tp} fit {budget} GPUs together; "
            "raise deployment.gpu_budget, or take smaller workers"
        )
    found.sort(key=lambda pools: (deployment.gpus(*pools), pools))
    return found[:: -(-len(found) // MOST_SPLITS)]


def _with(base: Config, prefill: int, decode: int) -> Config:
    data = base.model_dump(mode="json")
    data["deployment"]["prefill"]["replicas"] = prefill
    data["deployment"]["decode"]["replicas"] = decode
    return parse(data, "backtest")
