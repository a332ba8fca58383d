"""Where requests decode: those that ask for a short TPOT together, and no request without a worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.policies.fusion.binding import Binding
from pdplugins.policies.fusion.config import FusionSettings
from pdplugins.policies.fusion.core import Core
from pdplugins.policies.fusion.router import FusionRouter
from pdplugins.runtime.assembly import load_profile
from pdplugins.testing import Worker, deployment, fleet, request, worker
from pdplugins.types import Request, Terms

Cores = Callable[..., Core]
ALONE = {"composition": False}


def asking(name: str, tpot_s: float, tokens: int = 1000) -> Request:
    return request(name, tokens, terms=Terms(tpot_s=tpot_s))


def bound(router: FusionRouter, asked: Request, workers: tuple[Worker, ...]) -> str:
    """Return where a request decodes."""
    placement = router.on_arrival(asked, workers, 0.0)
    if placement.second is None:
        placement = router.on_prefill_done(asked, placement, workers, 0.0)
    assert placement.second is not None
    return placement.second


def decoding(name: str, requests: int) -> Worker:
    return worker(name, decode_requests=float(requests), decode_tokens=1000.0 * requests)


def test_requests_with_a_strict_tpot_decode_together(core: Cores) -> None:
    """d1 decodes less, but one of them is on d0 already."""
    workers, router = (decoding("d0", 6), decoding("d1", 5), decoding("d2", 6)), FusionRouter(core(**ALONE))
    first = bound(router, asking("a", 0.03), workers)
    assert {bound(router, asking(str(index), 0.03), workers) for index in range(5)} == {first}
    assert bound(router, request("usual"), workers) != first


def test_but_not_beyond_what_keeps_their_tpot(core: Cores) -> None:
    shared = core(**ALONE)
    router = FusionRouter(shared)
    few = decoding("d0", 4), decoding("d1", 4)
    first = bound(router, asking("a", 0.03), few)
    step_s = shared.costs.limit_s(0.03)
    many = next(count for count in range(1, 1000) if shared.costs.decode_s(count + 1, 1000.0) > step_s)
    crowded = tuple(decoding(each.id, many if each.id == first else 4) for each in few)
    assert bound(router, asking("b", 0.03), crowded) != first


def test_a_longer_tpot_than_the_deployments_changes_nothing(core: Cores) -> None:
    shared = core(**ALONE)
    binding, workers = Binding(shared), (decoding("d0", 6), decoding("d1", 5))
    patient = asking("patient", 10.0)
    assert binding.strict_s(patient) is None
    assert binding.stays(patient, workers[0])
    assert binding.best(patient, workers) == (workers[1], "shortest step")


def test_its_prompt_need_not_be_prefilled_there(core: Cores) -> None:
    """d0, where such requests decode, has a long queue: d1 prefills, and d0 decodes."""
    router = FusionRouter(core(**ALONE))
    assert bound(router, asking("a", 0.03), (decoding("d0", 4), decoding("d1", 5))) == "d0"
    workers = worker("d0", decode_requests=4.0, decode_tokens=4000.0, queued_tokens=9000.0), decoding("d1", 5)
    asked = asking("b", 0.03)
    placement = router.on_arrival(asked, workers, 0.0)
    assert (placement.first, placement.second) == ("d1", None)
    assert "decodes where its TPOT costs the least" in placement.reason
    placement = router.on_prefill_done(asked, placement, workers, 0.0)
    assert (placement.second, placement.reason) == ("d0", "its TPOT of 30 ms costs the least prefill")


def test_where_none_keeps_its_tpot_the_reason_says_so(core: Cores) -> None:
    bound = Binding(core(**ALONE)).best(asking("hasty", 1e-6), (decoding("d0", 6), decoding("d1", 5)))
    assert bound.worker.id == "d1"
    assert bound.reason == "no worker keeps its TPOT of 0.001 ms; shortest step"


@pytest.mark.parametrize("prefill", [0, 1])
def test_where_one_worker_decodes_nothing_is_handed_over(core: Cores, prefill: int) -> None:
    router, workers = FusionRouter(core(**ALONE)), fleet(prefill, 1)
    assert router.on_arrival(asking("a", 0.03), workers, 0.0).second == "d0"


MANY = deployment(load_profile("a100/qwen2.5-14b"), any_role=True)
LOADS = st.tuples(st.integers(0, 400), st.integers(0, 400_000), st.sampled_from([0, 10, 10**6]))


@given(st.lists(LOADS, min_size=1, max_size=5), st.lists(st.sampled_from([1e-9, 0.01, 0.03, 0.2, 1e6]), max_size=12))
def test_every_request_decodes_somewhere(loads: list[tuple[int, int, int]], tpots: list[float]) -> None:
    """Whatever it asks for, and however full the workers are."""
    workers = tuple(
        worker(f"d{index}", decode_requests=float(count), decode_tokens=float(context), free_kv_tokens=free)
        for index, (count, context, free) in enumerate(loads)
    )
    router = FusionRouter(Core(FusionSettings(composition=False), MANY))
    for index, tpot_s in enumerate(tpots):
        assert bound(router, asking(str(index), tpot_s), workers) in {each.id for each in workers}


QUEUES = st.sampled_from([0.0, 500.0, 20_000.0])


@given(st.lists(st.tuples(LOADS, QUEUES), min_size=1, max_size=8), st.lists(st.sampled_from([0.01, 0.03]), max_size=4))
def test_it_is_the_least_crowded_of_all_though_few_are_looked_at(
    loads: list[tuple[tuple[int, int, int], float]], tpots: list[float]
) -> None:
    """With prompts that wait, full workers, and workers on which others ask for a short TPOT."""
    workers = tuple(
        worker(
            f"d{index}", decode_requests=float(count), decode_tokens=float(context), free_kv_tokens=free,
            queued_tokens=queue,
        )
        for index, ((count, context, free), queue) in enumerate(loads)
    )  # fmt: skip
    shared = Core(FusionSettings(composition=False), MANY)
    for index, tpot_s in enumerate(tpots):
        shared.residents.placed(asking(str(index), tpot_s), workers[index % len(workers)].id)
    binding, asked = Binding(shared), request("usual")
    crowding_s = [binding._crowding(asked, each, binding._step_s(asked, each)) for each in workers]
    best = binding.best(asked, workers).worker
    assert crowding_s[workers.index(best)] == min(crowding_s)
