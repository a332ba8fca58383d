"""What can be run on a number of GPUs: every system with every cell of its grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pdplugins import extras
from pdplugins.config import Config, SimulationConfig, find, load, parse
from pdplugins.contracts.kinds import Kind
from pdplugins.contracts.perf import PerfModel
from pdplugins.contracts.workers import Role
from pdplugins.registry import BUNDLE, Registration, default_registry
from pdplugins.runtime.assembly import load_profile
from pdplugins.settings import Setting, put
from pdplugins.sim.run.setup import sizes_of_both

CHUNKS = (256, 512, 1024, 2048, 8192)
"""Tokens of a step that co-location is tuned over."""
FEW_CHUNKS = (512, 2048)
GPU_W = 600.0
"""Watts of each GPU in the budget that RAPID moves."""
COLOCATED, SPLIT = "co-location", "fixed split"

Changes = Mapping[str, Any]
"""Dotted keys of a config, and their values."""


@dataclass(frozen=True, slots=True)
class Question:
    """What advice is asked for: the hardware, the objectives, and what the traffic needs."""

    profile: str
    gpus: int
    ttft_s: float
    tpot_s: float
    startup_s: float
    longest_tokens: int
    repeats: bool
    """Whether prompts repeat what came before."""

    def sizes(self, perf: PerfModel, role: Role, gpus: int) -> list[int]:
        """Return the tensor-parallel sizes whose workers fit and hold the longest request."""
        known = set(perf.tp_sizes(role)) & set(sizes_of_both(perf))
        return sorted(tp for tp in known if tp <= gpus and perf.kv_capacity_tokens(tp) > self.longest_tokens)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One system with its settings and its GPUs."""

    system: str
    label: str
    """Its pools and settings, in words."""
    sizes: str
    """The tensor-parallel sizes of its workers."""
    shape: str
    """Its settings without the number of workers: what stays when it gets fewer GPUs."""
    gpus: int
    config: Config
    rank: int
    """The place of its system: the simplest first."""
    scales: bool = field(default=False)
    """Whether it changes the number of its workers by itself."""

    @property
    def name(self) -> str:
        """Return what it is called in tables and progress."""
        return f"{self.system}, {self.label}"

    @property
    def effort(self) -> int:
        """Return how much there is to run.

        0 is co-location as engines start, 1 with another chunk, 2 a fixed split, 3 whatever decides by itself.
        """
        if self.system == COLOCATED:
            return int(self.config.simulation.step_tokens != SimulationConfig().step_tokens)
        return 2 if self.system == SPLIT else 3

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what tells it from all others."""
        return self.system, self.label, self.gpus


@dataclass(frozen=True, slots=True)
class Shape:
    """The pools of a cell."""

    prefill: int
    prefill_tp: int
    decode: int
    decode_tp: int

    @property
    def changes(self) -> dict[str, Any]:
        """Return the keys of the config."""
        return {
            "deployment.prefill": {"replicas": self.prefill, "tp": self.prefill_tp},
            "deployment.decode": {"replicas": self.decode, "tp": self.decode_tp},
        }

    @property
    def gpus(self) -> int:
        """Return the GPUs of all workers."""
        return self.prefill * self.prefill_tp + self.decode * self.decode_tp

    @property
    def sizes(self) -> str:
        """Say the sizes only."""
        return f"TP {self.prefill_tp}" + (f" and {self.decode_tp}" if self.decode_tp != self.prefill_tp else "")

    def split(self) -> str:
        """Say the pools of a disaggregated deployment."""
        return f"{self.prefill}P{self.decode}D, {self.sizes}"

    def alike(self) -> str:
        """Say the pool of workers that are all alike."""
        count = self.prefill + self.decode
        return f"{count} worker{'s' * (count > 1)} of TP {self.prefill_tp}"


Shapes = Callable[[PerfModel, Question, int], Iterator[Shape]]


def thinned(counts: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the ascending `counts`, evenly, the first and the last among them."""
    if len(counts) <= most:
        return list(counts)
    return [counts[place * (len(counts) - 1) // (most - 1)] for place in range(most)]


def splits(perf: PerfModel, asked: Question, gpus: int) -> Iterator[Shape]:
    """Yield the ways to give all GPUs to prefill workers of one size and decode workers of one size."""
    for prefill_tp, decode_tp in _pairs(perf, asked, gpus):
        for decode in range(1, (gpus - prefill_tp) // decode_tp + 1):
            prefill, rest = divmod(gpus - decode * decode_tp, prefill_tp)
            if not rest:
                yield Shape(prefill, prefill_tp, decode, decode_tp)


def alike(perf: PerfModel, asked: Question, gpus: int) -> Iterator[Shape]:
    """Yield workers that are all alike, half of them with each label.

    Of all GPUs that there are some may be left over, so that each size is tried. Fewer GPUs are tried by themselves.
    """
    for tp in asked.sizes(perf, Role.PREFILL, gpus):
        count, rest = divmod(gpus, tp)
        if not rest or gpus == asked.gpus:
            yield Shape(count - count // 2, tp, count // 2, tp)


def cold(perf: PerfModel, asked: Question, gpus: int) -> Iterator[Shape]:
    """Yield the start of a scaler: one worker of each role."""
    for prefill_tp, decode_tp in _pairs(perf, asked, gpus):
        if prefill_tp + decode_tp <= gpus:
            yield Shape(1, prefill_tp, 1, decode_tp)


def warm(perf: PerfModel, asked: Question, gpus: int) -> Iterator[Shape]:
    """Yield every start of a scaler: one worker of each role, or all GPUs."""
    yield from {*cold(perf, asked, gpus), *splits(perf, asked, gpus)}


def _pairs(perf: PerfModel, asked: Question, gpus: int) -> Iterator[tuple[int, int]]:
    return product(asked.sizes(perf, Role.PREFILL, gpus), asked.sizes(perf, Role.DECODE, gpus))


@dataclass(frozen=True, slots=True)
class System:
    """One way to serve: a config, and the grid of its settings."""

    name: str
    base: Callable[[], Config]
    shapes: Shapes
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Further keys, each with the values to try."""
    always: Changes = field(default_factory=dict)
    scales: bool = False
    watts: bool = False
    """Whether it has a power budget, which goes with the GPUs."""

    def cells(self, asked: Question, gpus: int, rank: int) -> Iterator[Candidate]:
        """Yield every cell on `gpus` GPUs. Raises ConfigError."""
        perf, base = load_profile(asked.profile), self.base()
        if self.watts and perf.power() is None:
            return
        for shape, values in product(sorted(self.shapes(perf, asked, gpus), key=str), product(*self.grid.values())):
            knobs = dict(zip(self.grid, values, strict=True))
            watts = {"power.budget_w": GPU_W * shape.gpus} if self.watts else {}
            changes = {**self.always, **shape.changes, **_single(shape), **watts, **knobs}
            words = [
                f"{key.rpartition('.')[2].replace('step_tokens', 'chunk')} {value}" for key, value in knobs.items()
            ]
            pools = shape.split() if self._has_phases else shape.alike()
            start = "from " if self.scales else ""
            yield Candidate(
                system=self.name,
                label=", ".join([start + pools, *words]),
                sizes=shape.sizes,
                shape=", ".join([shape.sizes, *words]),
                gpus=gpus,
                config=_config(base, asked, gpus, changes),
                rank=rank,
                scales=self.scales,
            )

    @property
    def _has_phases(self) -> bool:
        return self.shapes is not alike


def _single(shape: Shape) -> dict[str, Any]:
    """Return what lets a single worker do both phases."""
    return {} if shape.decode else {"simulation.flip": "label"}


def _config(base: Config, asked: Question, gpus: int, changes: Changes) -> Config:
    data = base.model_dump(mode="json")
    data["slo"] = {"ttft_s": asked.ttft_s, "tpot_s": asked.tpot_s}
    data["deployment"] |= {"profile": asked.profile, "gpu_budget": gpus, "startup_s": asked.startup_s}
    for key, value in changes.items():
        put(data, Setting(tuple(key.split(".")), value))
    return parse(data, "advise")


def _shipped(name: str) -> Callable[[], Config]:
    return lambda: load(find(name))


def systems(asked: Question) -> list[System]:
    """Return every system: the stock ones, the shipped plugins, and those of other packages."""
    near = {"router.name": "cache-aware", "router.sticky": True} if asked.repeats else {}
    return [
        System(COLOCATED, _shipped("stock-colocated"), alike, {"simulation.step_tokens": CHUNKS}, near),
        System(SPLIT, _shipped("stock-least-loaded"), splits, always=near),
        System("threshold scaling", _shipped("stock-threshold"), cold, always=near, scales=True),
        System("dopd", _shipped("dopd"), warm, scales=True),
        System("ampd", _shipped("ampd"), splits),
        System("arrow", _shipped("arrow"), alike, {"simulation.step_tokens": FEW_CHUNKS}),
        System("dynaserve", _shipped("dynaserve"), alike),
        System("rapid", _shipped("rapid"), alike, watts=True),
        System("fusion", _shipped("fusion"), alike),
        System("fusion, scaling", _shipped("fusion"), alike, always={"bundle.scale": True}, scales=True),
        *_others(),
    ]


def _others() -> Iterator[System]:
    """Yield the policies that other packages have registered, each with its default settings."""
    for registration in default_registry().registrations():
        if registration.plugin.distribution in extras.DISTRIBUTIONS:
            continue
        if registration.kind == Kind.PLANNER:
            yield System(registration.name, _picked(registration), warm, scales=True)
        elif registration.kind in (Kind.ROUTER, BUNDLE):
            yield System(
                registration.name,
                _picked(registration),
                alike,
                always={"simulation.flip": "label", "sglang.dual_role": True},
            )


def _picked(registration: Registration) -> Callable[[], Config]:
    return lambda: parse({registration.kind: {"name": registration.name}}, registration.name)
