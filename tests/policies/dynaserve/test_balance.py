"""Algorithm 1: the cut after which both workers finish together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.dynaserve.balance import balance, finish_s
from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.passes import PassCosts
from pdplugins.policies.dynaserve.play import Leg
from pdplugins.policies.dynaserve.server import Job
from pdplugins.policies.dynaserve.timeline import Timeline
from tests.policies.dynaserve.model import Model, deployment_of

COSTS = PassCosts(deployment_of(Model()))
SETTINGS = DynaServeRouterSettings()


def job(prompt: int, tokens: int) -> Job:
    return Job("r", prompt, tokens, COSTS.prompt_s(0, prompt), 0.0)


def busy(*work: tuple[int, int]) -> Timeline:
    """Return a worker with work: prompt and output tokens of each request."""
    timeline = Timeline(COSTS)
    for prompt, tokens in work:
        timeline.add(Leg(COSTS.prompt_s(0, prompt), tokens, prompt, 0.0))
    return timeline


def later_s(work: Job, cut: int, first: Timeline, second: Timeline) -> float:
    return max(finish_s(work, cut, first, second, COSTS))


def test_the_idle_worker_gets_all_of_it() -> None:
    loaded, work = busy(*[(2000, 400)] * 10), job(1000, 200)
    assert balance(work, loaded, busy(), COSTS, SETTINGS) == 0
    assert balance(work, busy(), loaded, COSTS, SETTINGS) == work.length


def test_two_idle_workers_finish_together() -> None:
    """Lines 3 to 10: neither worker idles while the other one works."""
    first, second, work = busy(), busy(), job(1024, 1024)
    cut = balance(work, first, second, COSTS, SETTINGS)
    t1, t2 = finish_s(work, cut, first, second, COSTS)
    assert 1024 < cut < 2048
    assert t1 == pytest.approx(t2, rel=0.05)


def test_the_busier_worker_gets_less() -> None:
    """Section 4.1: fewer tokens to heavily loaded GPUs."""
    work, loaded = job(2048, 512), busy((2048, 100), (2048, 100))
    cuts = [balance(work, *pair, COSTS, SETTINGS) for pair in ((loaded, busy()), (busy(), busy()), (busy(), loaded))]
    assert cuts == sorted(set(cuts))


works = st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 1500)), max_size=12)


@given(st.integers(64, 12_000), st.integers(1, 2_000), works, works)
def test_six_probes_come_close_to_the_best_cut(
    prompt: int, tokens: int, ahead: list[tuple[int, int]], behind: list[tuple[int, int]]
) -> None:
    """The paper: within one percent of an oracle. Here against a fine grid of all cuts, by the same prediction."""
    work, first, second = job(prompt, tokens), busy(*ahead), busy(*behind)
    cut = balance(work, first, second, COSTS, SETTINGS)
    best_s = min(later_s(work, at, first, second) for at in range(0, work.length + 1, max(work.length // 200, 1)))
    whole_s = max(later_s(work, 0, busy(), busy()), later_s(work, work.length, busy(), busy()))
    assert later_s(work, cut, first, second) <= best_s + whole_s / 8 + 0.1
