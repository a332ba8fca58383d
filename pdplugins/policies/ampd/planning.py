"""The deployment plan of §5 as a mixed integer linear program: which degrees to use, and how many replicas of each.

Eq. 5 as printed bounds Z by the P95 latency of *one* replica of each degree in use, whatever the load. One replica of
the fastest degree would then always be optimal. Here the coefficients depend on how the load is shared. A group of k
replicas of degree n that takes a share of the traffic has a P95 latency tau(n, k, share), which is simulated first.
The program then chooses groups. A decode group may also take a share of the prefills, as Algorithm 1 allows. The
program stays linear, because each group at each share is one binary variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError

SHARES = 8
"""The traffic is divided into this many equal parts, and a group takes a whole number of them."""
TIE = 1e-3
"""Weight of the sum of all P95s next to the worst one, so that GPUs that cannot help the bottleneck help elsewhere."""


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of one degree in one phase: x^(n) or y^(n) of the paper."""

    role: Role
    degree: int
    replicas: int

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.degree * self.replicas

    def __str__(self) -> str:
        return f"<TP={self.degree}, DP={self.replicas}>"


@dataclass(frozen=True, slots=True)
class Option:
    """A group at a share of the traffic, and the latency that follows."""

    group: Group
    share: int
    """Parts of the traffic that it takes, out of `SHARES`."""
    p95: float
    """tau(n, k, share): P95 latency over its SLO."""
    local: int = 0
    """Parts of the prefills that a decode group also takes, out of `SHARES`."""


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """The groups of both phases."""

    groups: tuple[Group, ...]
    """Prefill first, larger degrees first."""
    p95: float
    """Z: the worst P95 latency over its SLO."""

    @property
    def gpus(self) -> int:
        """GPUs of all groups."""
        return sum(group.gpus for group in self.groups)

    def of(self, role: Role) -> tuple[Group, ...]:
        """Return the groups of one phase."""
        return tuple(group for group in self.groups if group.role is role)

    def __str__(self) -> str:
        pools = (" + ".join(map(str, self.of(role))) for role in Role)
        return "P: {}, D: {}".format(*pools)


def best_plans(options: Sequence[Option], gpus: int, count: int) -> list[DeploymentPlan]:
    """Return the `count` plans with the least Z within `gpus`, best first; fewer where there are no more.

    Raises ConfigError when not even one fits.
    """
    useful = _promising(tuple(_useful(options, gpus)), gpus, count)
    if {option.group.role for option in useful} != set(Role):
        raise ConfigError(
            f"plan: {gpus} GPUs hold no prefill and decode worker for these requests; give more GPUs, a profile with "
            "smaller degrees, or leave out the longest requests"
        )
    program = _Program(useful, gpus)
    plans: list[DeploymentPlan] = []
    while len(plans) < count and (plan := program.solve()) is not None:
        plans.append(plan)
        program.exclude(plan)
    if not plans:
        raise ConfigError(f"plan: {gpus} GPUs hold no prefill and decode worker together; give more GPUs")
    return plans


def _useful(options: Sequence[Option], gpus: int) -> Iterator[Option]:
    """Drop groups that do not fit, and those no better than a smaller group with the same degree and share."""
    best: dict[tuple[Role, int, int, int], float] = {}
    for option in sorted(options, key=lambda o: o.group.replicas):
        group = option.group
        key = group.role, group.degree, option.share, option.local
        if group.gpus < gpus and option.p95 < 0.98 * best.get(key, np.inf):
            best[key] = option.p95
            yield option


def _promising(options: tuple[Option, ...], gpus: int, count: int) -> tuple[Option, ...]:
    """Drop options that are worse than the best `count` plans with one degree in each phase, which are easy to find."""
    by_phase = {role: [option for option in options if option.group.role is role] for role in Role}
    found: dict[tuple[Group, Group], float] = {}
    for decode in by_phase[Role.DECODE]:
        for prefill in by_phase[Role.PREFILL] if decode.share == SHARES else ():
            pair = prefill.group, decode.group
            if prefill.share + decode.local == SHARES and prefill.group.gpus + decode.group.gpus <= gpus:
                found[pair] = min(max(prefill.p95, decode.p95), found.get(pair, np.inf))
    if len(found) < count:
        return options
    enough = sorted(found.values())[count - 1]
    return tuple(option for option in options if option.p95 <= enough)


class _Program:
    """Minimises Z. The variables are one binary u for each option, then Z."""

    def __init__(self, options: Sequence[Option], gpus: int) -> None:
        self._options = options
        self._p95 = np.array([option.p95 for option in options])
        self._rows: list[NDArray[np.float64]] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._constrain(np.array([float(option.group.gpus) for option in options]), 0, gpus)  # (C3)
        decodes = np.array([option.group.role is Role.DECODE for option in options])
        shares, local = (np.array([float(getattr(o, name)) for o in options]) for name in ("share", "local"))
        self._constrain(shares * decodes, SHARES, SHARES)  # all decodes are served, which needs an instance
        self._constrain(shares * ~decodes + local, SHARES, np.inf)  # all prefills are served too
        self._constrain(~decodes * 1.0, 1, np.inf)  # at least one instance, even if all prefills are local
        for role in Role:
            in_phase = np.array([option.group.role is role for option in options])
            for degree in sorted({option.group.degree for option in options}):
                group = in_phase & np.array([option.group.degree == degree for option in options])
                if group.any():
                    self._constrain(group.astype(float), 0, 1)
                    self._constrain(self._p95 * group, -np.inf, 0, z=-1.0)  # (C1), (C2)

    def solve(self) -> DeploymentPlan | None:
        """Return the best plan that is not excluded; None when there is none."""
        count = len(self._options)
        solution = milp(
            np.append(TIE * self._p95, 1.0),
            constraints=LinearConstraint(csr_matrix(np.array(self._rows)), self._low, self._high),
            integrality=np.append(np.ones(count), 0),
            bounds=Bounds(0, np.append(np.ones(count), np.inf)),
        )
        if solution.x is None:
            return None
        chosen = [option for option, value in zip(self._options, solution.x, strict=False) if value > 0.5]
        groups = sorted((option.group for option in chosen), key=lambda g: (g.role is Role.DECODE, -g.degree))
        return DeploymentPlan(tuple(groups), max(option.p95 for option in chosen))

    def exclude(self, plan: DeploymentPlan) -> None:
        """Forbid exactly the groups of `plan`, at any shares. Some of them together with others stay possible."""
        row = np.array([1.0 if option.group in plan.groups else -1.0 for option in self._options])
        self._constrain(row, -np.inf, len(plan.groups) - 1)

    def _constrain(self, row: NDArray[np.float64], low: float, high: float, z: float = 0.0) -> None:
        self._rows.append(np.append(row, z))
        self._low.append(low)
        self._high.append(high)
