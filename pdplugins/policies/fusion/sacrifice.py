"""Which job becomes late where not all can be in time: of the tenant that has most, the one that gains most time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from pdplugins.contracts.request import Terms

NOBODY = ""
"""The tenant of jobs without one."""
MOST_TENANTS = 64
"""Tenants with an account of their own; what comes from more is counted together."""
PRIORITY = 10.0
"""How many times as much a request is worth as one of the priority below."""
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
FADE_S = 30.0
"""Time after which work of a tenant counts half."""
LEAST_WORK_S = 1e-3
"""A tenant whose work counts for less is forgotten."""
Entry = tuple[float, str]
"""A key of an order, and the name of the job. Entries of jobs that have left stay in a heap until they come up."""


class Job(NamedTuple):
    """One job that waits. Jobs compare by deadline, then by age."""

    due_s: float
    """Time by which it must have ended."""
    since_s: float
    key: str
    cost_s: float
    """Time that one machine needs for it when it does nothing else."""
    weight: float = 1.0
    """What it is worth to end it in time."""
    tenant: str = NOBODY
    share: float = 1.0
    """The tenant's share of the machines, against the other tenants."""


def worth(terms: Terms | None) -> float:
    """Return what it is worth to serve a request in time, 1 for one that asks for nothing."""
    if terms is None:
        return 1.0
    return min(max(terms.weight, LEAST_WEIGHT), MOST_WEIGHT) * PRIORITY ** min(max(terms.priority, -9), 9)


class Accounts:
    """Work that each tenant had lately, over its share. Old work counts less and less."""

    def __init__(self) -> None:
        self.had_s: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        """Jobs of each tenant that wait."""
        self._now_s = 0.0

    def known_as(self, tenant: str | None) -> str:
        """Return under which name the jobs of a tenant are counted."""
        if tenant is None:
            return NOBODY
        if tenant in self.had_s or tenant in self._waiting:
            return tenant
        return tenant if len(self.had_s.keys() | self._waiting.keys()) < MOST_TENANTS else NOBODY

    def waits(self, job: Job) -> None:
        """Note that a job waits."""
        self._waiting[job.tenant] += 1

    def left(self, job: Job) -> None:
        """Note that a job waits no more."""
        self._waiting[job.tenant] -= 1
        if self._waiting[job.tenant] <= 0:
            del self._waiting[job.tenant]

    def worked(self, job: Job, work_s: float) -> None:
        """Count work for a job's tenant."""
        self.had_s[job.tenant] = self.had_s.get(job.tenant, 0.0) + work_s / job.share

    def at(self, now_s: float) -> None:
        """Let old work fade; call it as often as wanted."""
        if now_s - self._now_s < 1.0:
            return
        kept = 0.5 ** ((now_s - self._now_s) / FADE_S)
        self._now_s = now_s
        faded = {tenant: had_s * kept for tenant, had_s in self.had_s.items()}
        self.had_s.clear()
        self.had_s.update({tenant: had_s for tenant, had_s in faded.items() if had_s >= LEAST_WORK_S})


class Sacrifice:
    """The jobs of a set, ready to name the one to give up.

    With one tenant and equal weights this is Moore and Hodgson's rule: the most expensive one.

    :param had_s: work that each tenant had already, over its share.
    """

    def __init__(self, had_s: Mapping[str, float]) -> None:
        self._had_s = had_s
        self._heaps: dict[str, list[Entry]] = {}
        self._work_s: dict[str, float] = {}
        """Cost of the jobs of each tenant, over its share."""

    def add(self, job: Job) -> None:
        """Take in a job."""
        if job.tenant not in self._heaps:
            self._heaps[job.tenant] = []
            self._work_s[job.tenant] = 0.0
        heappush(self._heaps[job.tenant], (-job.cost_s / job.weight, job.key))
        self._work_s[job.tenant] += job.cost_s / job.share

    def left(self, job: Job) -> None:
        """Note that a job is not in the set any more."""
        self._work_s[job.tenant] = max(self._work_s[job.tenant] - job.cost_s / job.share, 0.0)

    def pop(self, jobs: Mapping[str, Job]) -> Job | None:
        """Return the job of `jobs`, which is the set, to give up; None when there is none."""
        while self._heaps:
            tenant = next(iter(self._heaps)) if len(self._heaps) == 1 else max(self._heaps, key=self._has_s)
            heap = self._heaps[tenant]
            while heap:
                cost, key = heappop(heap)
                if (job := jobs.get(key)) is not None and -job.cost_s / job.weight == cost and job.tenant == tenant:
                    self.left(job)
                    return job
            del self._heaps[tenant], self._work_s[tenant]
        return None

    def _has_s(self, tenant: str) -> float:
        return self._had_s.get(tenant, 0.0) + self._work_s[tenant]
