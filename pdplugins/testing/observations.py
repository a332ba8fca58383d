"""Random observations, good and bad ones: what hosts say, and what they should not."""

from __future__ import annotations

import math
import random

from pdplugins.contracts.batching import BatchView, QueuedPrefill
from pdplugins.contracts.planner import PlannerView, Traffic
from pdplugins.contracts.power import GpuView
from pdplugins.contracts.request import Request, Terms
from pdplugins.contracts.workers import ANYTHING, Capabilities, Pool, Role, WorkerLoad
from pdplugins.testing.views import Worker

IMPOSSIBLE = (math.nan, math.inf, -math.inf, -1.0, 1e300)


class Observations:
    """One host that says anything. The same seed gives the same observations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def number(self, largest: float = 1e6) -> float:
        """A plausible number, or an impossible one."""
        if self._random.random() < 0.15:
            return self._random.choice(IMPOSSIBLE)
        return self._random.choice([0.0, float(self._random.randint(0, 10)), self._random.uniform(0, largest)])

    def maybe(self, largest: float = 1e6) -> float | None:
        """A number, or None where the host does not say."""
        return None if self._random.random() < 0.3 else self.number(largest)

    def later_s(self, interval_s: float) -> float:
        """Seconds until the next call: an interval as a rule, sometimes none at all, sometimes many."""
        return self._random.choice([interval_s, interval_s, interval_s * self._random.random(), 0.0, 100 * interval_s])

    def load(self, name: str) -> WorkerLoad:
        """What one engine says about its queue and its batch."""
        counts = (self.number() for _ in range(4))
        return WorkerLoad(name, *counts, *(self.maybe(10) for _ in range(2)), *(self.maybe() for _ in range(3)))

    def workers(self) -> tuple[Worker, ...]:
        """Return one to three workers of each role; other ones each time."""
        return (*self._workers(Role.PREFILL), *self._workers(Role.DECODE))

    def _workers(self, role: Role) -> list[Worker]:
        choose = self._random
        names = [f"{role[0]}{index}" for index in choose.sample(range(5), choose.randint(1, 3))]
        return [
            Worker(
                id=name,
                role=role,
                load=self.load(name),
                kv_capacity_tokens=choose.choice([0, choose.randint(0, 10**6)]),
                tp=choose.choice([None, 1, 2]),
                free_kv_tokens=choose.choice([None, 0, choose.randint(0, 10**6)]),
                capabilities=choose.choice([None, ANYTHING, Capabilities(frozenset({role}), False, False)]),
                cached_blocks=frozenset(choose.sample(range(6), choose.randint(0, 3))),
            )
            for name in names
        ]

    def request(self, name: str, arrival_s: float) -> Request:
        """One request; its prompt may be larger than any KV cache, its worker may be gone."""
        choose = self._random
        prompt = choose.choice([1, choose.randint(1, 10_000), 10**7])
        session = choose.choice([None, None, "s0", "s1"])
        return Request(
            id=name,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            predicted_output_tokens=choose.choice([None, 1, choose.randint(1, 10**5)]),
            history_tokens=0 if session is None else choose.randint(0, prompt - 1),
            session=session,
            bound_worker=None if session is None else choose.choice([None, "p0", "d0", "d1", "gone"]),
            blocks=tuple(choose.choices(range(6), k=choose.randint(0, 3))),
            terms=choose.choice([None, None, self._terms()]),
        )

    def _terms(self) -> Terms:
        """What a request asks for: a host has clamped it, or not."""
        choose = self._random
        objectives = choose.choice([None, 1e-3, 1.0, 600.0]), choose.choice([None, 1e-3, 0.1])
        weight, share = choose.choice([1.0, 0.0, 1e9]), choose.choice([1.0, 0.1])
        return Terms(choose.randint(-10, 10), weight, *objectives, choose.choice([None, "a", "b"]), share)

    def pool(self) -> Pool:
        """The workers of one role."""
        choose = self._random
        loads = tuple(self.load(f"w{index}") for index in range(choose.randint(0, 3)))
        return Pool(choose.randint(0, 20), choose.randint(0, 5), choose.randint(0, 5), loads)

    def planner_view(self, now_s: float) -> PlannerView:
        """What a planner sees."""
        traffic = None
        if self._random.random() < 0.8:
            told = (self.maybe(largest) for largest in (1e5, 1e4, 10, 1, 1e10, 1, 1, 1e3))
            traffic = Traffic(self.number(10), self.number(1e3), *told)
        return PlannerView(now_s, traffic, self.pool(), self.pool())

    def batch_view(self) -> BatchView:
        """One instance just before its next step."""
        choose, queue = self._random, []
        for index in range(choose.randint(0, 6)):
            request = self.request(f"r{index}", 0.0)
            done = choose.choice([None, 0, choose.randint(0, request.prompt_tokens - 1)])
            queue.append(QueuedPrefill(request, request.prompt_tokens - (done or 0), choose.uniform(0, 10), done))
        decodes = choose.choice([0, choose.randint(1, 300)])
        own = tuple(self.number(1.0) for _ in range(choose.choice([0, 0, choose.randint(0, decodes)])))
        return BatchView(tuple(queue), decodes, choose.randint(0, 10**6) if decodes else 0, own)

    def gpus(self, count: int) -> tuple[GpuView, ...]:
        """Return the GPUs of a node: one of each phase at least."""
        choose = self._random
        roles = [Role.PREFILL, Role.DECODE, *(choose.choice(list(Role)) for _ in range(count - 2))]
        return tuple(GpuView(index, role, self.number(700), 0.0) for index, role in enumerate(roles))
