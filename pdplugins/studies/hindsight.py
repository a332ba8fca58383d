"""What fixed pools would have done with the traffic of a run: how many GPUs it takes, and what the same cost buys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pdplugins.config import Config, parse
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role
from pdplugins.errors import PdpluginsError
from pdplugins.runtime.assembly import build_deployment
from pdplugins.sim.run.simulate import simulate
from pdplugins.studies.advise.candidates import SPLIT, Candidate, Question, Shape, systems, thinned
from pdplugins.studies.advise.traffic import part_of
from pdplugins.workloads.trace import TraceRequest

TARGET = 0.99
"""SLO attainment that pools must have to do."""
MOST, WHOLE = 1_500, 20_000
"""Requests that splits are chosen on, and that the chosen one is judged on."""
MOST_SPLITS = 16
"""Splits that are tried of each number of GPUs."""


def lines(config: Config, requests: Sequence[TraceRequest], gpus_held: float) -> list[str]:
    """Say how many GPUs of fixed pools would have done, and what those of the same cost would have had.

    :param gpus_held: by the run, on the average of its length.
    """
    if config.simulation.extra:  # pools of workers of several sizes: none of one size compare with them
        return []
    try:
        pools = _Pools(config, list(requests))
        return [_enough(pools), *_same_cost(pools, gpus_held)]
    except PdpluginsError:  # the traffic does not fit the simulator: a run was good without this
        return []


class Found(NamedTuple):
    """Fixed pools, and what they attain."""

    attainment: float
    label: str
    gpus: int


class _Pools:
    """The best split of each number of GPUs, with workers of the sizes that the run had."""

    def __init__(self, config: Config, requests: list[TraceRequest]) -> None:
        self._part, self._whole = part_of(requests, MOST), part_of(requests, WHOLE)
        self._engines = _engines_of(config)
        self.budget = config.deployment.gpu_budget
        pools = config.deployment
        self._asked = Question(
            profile=pools.profile,
            gpus=self.budget,
            ttft_s=config.slo.ttft_s,
            tpot_s=config.slo.tpot_s,
            startup_s=pools.startup_s,
            longest_tokens=0,
            repeats=any(request.rounds or request.blocks for request in requests),
        )
        deployment = build_deployment(config)  # resolves tp: auto
        self._sizes = deployment.prefill_tp, deployment.decode_tp
        self.most = max(min(self.budget, len(requests) * sum(self._sizes)), 2)
        """GPUs beyond which there is nothing to gain: each request has two workers of its own."""
        self._chosen: dict[int, Candidate | None] = {}
        self._known: dict[int, Found] = {}
        split = next(system for system in systems(self._asked) if system.name == SPLIT)
        self._split = replace(split, shapes=self._shapes)

    def best(self, gpus: int) -> Found | None:
        """Return the best split of at most `gpus`; None where none fits. It is chosen on a part of the requests."""
        if gpus < 2:
            return None
        if gpus not in self._chosen:
            tried = [(self._attainment(cell, self._part), cell.label, cell) for cell in self._cells(gpus)]
            self._chosen[gpus] = max(tried, key=lambda one: one[:2])[2] if tried else None
        if (cell := self._chosen[gpus]) is None:
            return self.best(gpus - 1)
        if gpus not in self._known:
            self._known[gpus] = Found(self._attainment(cell, self._whole), cell.label, gpus)
        return self._known[gpus]

    def _cells(self, gpus: int) -> Iterator[Candidate]:
        return self._split.cells(self._asked, gpus, 0)

    def _shapes(self, perf: PerfModel, asked: Question, gpus: int) -> Iterator[Shape]:
        """Yield the splits of all GPUs into workers of the sizes that the run had, evenly thinned out where many."""
        prefill_tp, decode_tp = self._sizes
        if prefill_tp in asked.sizes(perf, Role.PREFILL, gpus) and decode_tp in asked.sizes(perf, Role.DECODE, gpus):
            most = range(1, (gpus - prefill_tp) // decode_tp + 1)
            for decode in thinned(
                [count for count in most if not (gpus - count * decode_tp) % prefill_tp], MOST_SPLITS
            ):
                yield Shape((gpus - decode * decode_tp) // prefill_tp, prefill_tp, decode, decode_tp)

    def _attainment(self, cell: Candidate, requests: list[TraceRequest]) -> float:
        data = cell.config.model_dump(mode="json")
        for section, keys in self._engines.items():
            data[section] |= keys
        result, _ = simulate(parse(data), requests, trace_name="hindsight", command="hindsight")
        if result.interrupted:
            raise KeyboardInterrupt
        return result.metrics.slo_attainment or 0.0


def _engines_of(config: Config) -> dict[str, dict[str, Any]]:
    """Return the sections that say which engines a run had: fixed pools are to have the same ones."""
    data = config.model_dump(mode="json")
    more: dict[str, Any] = {"extra": [], "deaths": []}  # these belong to the run's own workers
    return {
        "simulation": data["simulation"] | more,
        "deployment": {key: data["deployment"][key] for key in ("max_batch", "kv_tokens")},
    }


def _enough(pools: _Pools) -> str:
    low = high = 2
    while (found := pools.best(high)) is None or found.attainment < TARGET:
        if high == pools.most:
            had = "" if found is None else f"; the best ({found.label}) has {found.attainment:.1%}"
            return f"In hindsight (simulated): no fixed pools within {pools.budget} GPUs reach {TARGET:.0%}{had}"
        low, high = high + 1, min(2 * high, pools.most)
    while low < high:  # more GPUs never attain less, but for chance
        middle = (low + high) // 2
        tried = pools.best(middle)
        if tried is not None and tried.attainment >= TARGET:
            high, found = middle, tried
        else:
            low = middle + 1
    return (
        f"In hindsight (simulated): {found.gpus} GPUs would have done, fixed at {found.label}: {found.attainment:.1%}"
    )


def _same_cost(pools: _Pools, gpus_held: float) -> Iterator[str]:
    gpus = max(min(round(gpus_held), pools.budget), 2)
    if (tried := pools.best(gpus)) is not None:
        yield (
            f"This run held {gpus_held:.1f} GPUs on the average; fixed pools of {tried.gpus} ({tried.label}) would "
            f"have had {tried.attainment:.1%}"
        )
