"""An order of waiting work in which as many jobs as possible end in time, and none starves.

Moore and Hodgson (1968): take the jobs in the order of their deadlines. Whenever the work taken so far cannot end by
the deadline of the last one, drop the most expensive job taken. What is left is the largest set that one machine can
serve in time. Jobs that are dropped are late, and go last. A share of the work always goes to the oldest job.

Jobs may have weights and tenants (`Sacrifice` says what is dropped then). With weights no fast rule is optimal. To drop
the most expensive one for its weight is Moore and Hodgson's rule where all weights are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, KeysView, Mapping
from heapq import heapify, heappop, heappush

from pdplugins.contracts.request import Terms
from pdplugins.policies.fusion.sacrifice import LEAST_WEIGHT, MOST_WEIGHT, Accounts, Entry, Job, Sacrifice, worth

REORDER = 16
"""Changes after which even a short queue is put in order anew."""
MOST_STALE = 1024
"""Entries of jobs that have left, beside as many as there are timely jobs, before the heaps are made anew."""


def in_time(jobs: Iterable[Job], now_s: float, speed: float, had_s: Mapping[str, float] = {}) -> list[Job]:
    """Return the jobs that can all end in time, by deadline.

    :param speed: machines that work at once; a fraction for a machine that also does something else.
    :param had_s: work that each tenant had already, over its share.
    """
    kept: dict[str, Job] = {}
    sacrifice = Sacrifice(had_s)
    end_s = now_s
    for job in sorted(jobs):
        kept[job.key] = job
        end_s += job.cost_s / speed
        sacrifice.add(job)
        while end_s > job.due_s and (late := sacrifice.pop(kept)) is not None:
            end_s -= kept.pop(late.key).cost_s / speed
    return list(kept.values())


class Owed:
    """The share of all work that goes to the oldest job, as an account: all work adds to it, and its turns are paid.

    :param share: from 0 to below 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.work = 0.0
        """What the oldest job has coming."""

    def covers(self, cost: float) -> bool:
        """Return whether it is the oldest job's turn, which costs `cost`."""
        return self._share > 0 and self.work >= cost

    def worked(self, work: float) -> None:
        """Count work for anybody."""
        self.work += self._share * work

    def paid(self, work: float) -> None:
        """Count work that was the oldest job's turn."""
        self.work -= work


class DeadlineQueue:
    """Jobs that wait, in that order. A call costs O(log n) for n jobs, averaged over all calls.

    A new job makes another one late only where all of them together would pass the latest deadline. That is exact where
    all objectives are equal. The whole order is made anew after as many changes as `reorder` jobs wait.

    :param oldest_share: share of the work that goes to the oldest job, from 0 to below 1.
    :param reorder: changes for each waiting job after which the order is made anew.
    :param turn_s: work that a turn of the oldest job is at most.
    """

    def __init__(self, oldest_share: float, reorder: float = 0.25, turn_s: float = math.inf) -> None:
        self._owed = Owed(oldest_share)
        self._reorder = reorder
        self._turn_s = turn_s
        self._jobs: dict[str, Job] = {}
        self._timely: dict[str, Job] = {}
        self._late: dict[str, Job] = {}
        self._work_s = 0.0
        """Cost of all timely jobs."""
        self._last_due_s = -math.inf
        """The latest deadline of all that were timely since the order was made."""
        self._by_due: list[Entry] = []
        self._accounts = Accounts()
        self._sacrifice = Sacrifice(self._accounts.had_s)
        self._by_worth: list[tuple[float, float, str]] = []
        """Late jobs, the most valuable first, and the oldest of those."""
        self._by_age: list[Entry] = []
        self._changes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: object) -> bool:
        return key in self._jobs

    @property
    def keys(self) -> KeysView[str]:
        """The names of all jobs."""
        return self._jobs.keys()

    @property
    def late(self) -> int:
        """Number of jobs that are not expected to end in time."""
        return len(self._late)

    @property
    def work_s(self) -> float:
        """Cost of all jobs that are expected to end in time."""
        return self._work_s

    def push(self, job: Job, now_s: float, speed: float) -> None:
        """Add a job."""
        self.remove(job.key)
        self._jobs[job.key] = job
        self._accounts.waits(job)
        heappush(self._by_age, (job.since_s, job.key))
        self._take(job)
        while now_s + self._work_s / speed > self._last_due_s and self._timely:
            if (late := self._sacrifice.pop(self._timely)) is None:
                break
            self._miss(late)
        if len(self._by_due) > 2 * len(self._timely) + MOST_STALE:
            timely, self._timely = self._timely, {}
            self._take_all(timely.values())
        if len(self._by_age) > 2 * len(self._jobs) + MOST_STALE:
            self._by_age = sorted((job.since_s, job.key) for job in self._jobs.values())

    def remove(self, key: str) -> None:
        """Forget a job, if it waits."""
        if (job := self._jobs.pop(key, None)) is None:
            return
        self._accounts.left(job)
        self._changes += 1
        self._late.pop(key, None)
        if self._timely.pop(key, None) is not None:
            self._work_s = max(self._work_s - job.cost_s, 0.0)
            self._sacrifice.left(job)
        if not self._jobs:
            self._owed.work, self._last_due_s = min(self._owed.work, 0.0), -math.inf

    def first(self, now_s: float, speed: float) -> Job | None:
        """Return the job to start next; None when nothing waits."""
        if not self._jobs:
            return None
        oldest = self._oldest()
        if self._owed.covers(min(oldest.cost_s, self._turn_s)):
            return oldest
        self._accounts.at(now_s)
        if self._changes > max(REORDER, self._reorder * len(self._jobs)):
            self.order(now_s, speed)
        while (head := self._head()) is not None:
            if now_s + head.cost_s <= head.due_s:
                return head
            self._sacrifice.left(head)
            self._miss(head)
        return self._most_worth() or oldest

    def asked(self, job: Job, terms: Terms | None) -> Job:
        """Return `job` with what its request asks for."""
        if terms is None:
            return job
        tenant, share = self._accounts.known_as(terms.tenant), min(max(terms.tenant_weight, LEAST_WEIGHT), MOST_WEIGHT)
        return job._replace(weight=worth(terms), tenant=tenant, share=share)

    def why(self, job: Job, now_s: float) -> str:
        """Say why `job`, which `first` returned, is next."""
        late_s = now_s - job.due_s
        if self._owed.covers(min(job.cost_s, self._turn_s)) and self._oldest().key == job.key:
            return f"turn of the oldest, which has waited {now_s - job.since_s:.2f} s"
        if job.key in self._timely:
            return f"due in {-late_s:.2f} s, {job.cost_s:.2f} s of prefill; {len(self._late)} of {len(self)} are late"
        cause = f"its deadline passed {late_s:.2f} s ago" if late_s > 0 else "in time it would make others late"
        return f"late: {cause}; {job.cost_s:.2f} s of prefill"

    def first_late(self) -> Job | None:
        """Return the job that was found to be late first; None when all are expected to end in time."""
        return next(iter(self._late.values()), None)

    def start(self, job: Job, share: float = 1.0) -> None:
        """Remove a job that starts now.

        :param share: how much of its cost is worked off; for the rest it is pushed again.
        """
        if self._owed.covers(min(job.cost_s, self._turn_s)) and self._oldest().key == job.key:
            self._owed.paid(share * job.cost_s)
        self._owed.worked(share * job.cost_s)
        self._accounts.worked(job, share * job.cost_s)
        self.remove(job.key)

    def order(self, now_s: float, speed: float) -> None:
        """Put all jobs in order anew."""
        self._changes = 0
        open_jobs = (job for job in self._jobs.values() if job.due_s > now_s)
        self._take_all(in_time(open_jobs, now_s, speed, self._accounts.had_s))
        self._late = {key: job for key, job in self._jobs.items() if key not in self._timely}
        self._by_worth = [(-job.weight, job.since_s, key) for key, job in self._late.items()]
        heapify(self._by_worth)

    def _take_all(self, jobs: Iterable[Job]) -> None:
        """Let these be the timely jobs."""
        self._by_due, self._timely, self._work_s, self._last_due_s = [], {}, 0.0, -math.inf
        self._sacrifice = Sacrifice(self._accounts.had_s)
        for job in jobs:
            self._take(job)

    def _take(self, job: Job) -> None:
        self._timely[job.key] = job
        self._work_s += job.cost_s
        self._last_due_s = max(self._last_due_s, job.due_s)
        heappush(self._by_due, (job.due_s, job.key))
        self._sacrifice.add(job)

    def _miss(self, job: Job) -> None:
        """Make a timely job late."""
        del self._timely[job.key]
        self._late[job.key] = job
        heappush(self._by_worth, (-job.weight, job.since_s, job.key))
        self._work_s = max(self._work_s - job.cost_s, 0.0)

    def _most_worth(self) -> Job | None:
        """Return the most valuable late job; None when there is none."""
        while self._by_worth:
            weight, since_s, key = self._by_worth[0]
            if (job := self._late.get(key)) is not None and (job.weight, job.since_s) == (-weight, since_s):
                return job
            heappop(self._by_worth)
        return None

    def _oldest(self) -> Job:
        """Return the oldest of all jobs, of which there must be one."""
        while (job := self._jobs.get(self._by_age[0][1])) is None or job.since_s != self._by_age[0][0]:
            heappop(self._by_age)
        return job

    def _head(self) -> Job | None:
        """Return the timely job with the earliest deadline."""
        while self._by_due:
            due_s, key = self._by_due[0]
            if (job := self._timely.get(key)) is not None and job.due_s == due_s:
                return job
            heappop(self._by_due)
        return None
