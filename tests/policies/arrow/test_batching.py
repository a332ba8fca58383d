"""Arrow's local scheduler: decodes first, then chunks of the prompts in their order (Section 5.4)."""

from __future__ import annotations

import pytest

from pdplugins.config import find, load, parse
from pdplugins.policies.arrow.batching import ArrowBatchScheduler
from pdplugins.policies.arrow.config import ArrowBatchSettings
from pdplugins.sim.run.simulate import simulate
from pdplugins.types import BatchView, QueuedPrefill, Request
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic
from tests.policies.arrow.cluster import DEPLOYMENT


def plan(decodes: int, *remaining: int, step_tokens: int = 1000) -> dict[str, int]:
    queue = tuple(
        QueuedPrefill(Request(f"r{index}", 0.0, tokens), tokens, 0.0) for index, tokens in enumerate(remaining)
    )
    scheduler = ArrowBatchScheduler(ArrowBatchSettings(step_tokens=step_tokens), DEPLOYMENT)
    return dict(scheduler.next_batch(BatchView(queue, decodes, 500 * decodes), 0.0).prefill_tokens)


@pytest.mark.parametrize(
    ("decodes", "remaining", "expected"),
    [
        (0, (), {}),
        (0, (400, 500), {"r0": 400, "r1": 500}),
        (0, (400, 700, 50), {"r0": 400, "r1": 600}),  # the second one is cut; nobody overtakes it
        (300, (400, 700), {"r0": 400, "r1": 300}),
        (999, (400,), {"r0": 1}),
        (1000, (400,), {}),
        (1200, (400,), {}),  # decodes have all of it
    ],
)
def test_a_step_is_decodes_then_chunks(decodes: int, remaining: tuple[int, ...], expected: dict[str, int]) -> None:
    assert plan(decodes, *remaining) == expected


def test_it_composes_what_engines_with_decode_first_do() -> None:
    """So that a simulated engine without a batch scheduler is the paper's too."""
    keys = {
        "seed": 0, "duration_s": 20, "arrivals": {"kind": "poisson", "rate": 12},
        "isl_tokens": {"kind": "lognormal", "median": 1500, "sigma": 0.8},
        "osl_tokens": {"kind": "lognormal", "median": 150, "sigma": 0.5},
    }  # fmt: skip
    trace = list(synthetic(SyntheticSettings.model_validate(keys)))
    own = load(find("arrow")).model_dump(mode="json")
    policy = own | {"batch_scheduler": {"name": "arrow", "step_tokens": own["simulation"]["step_tokens"]}}
    of_engine, of_policy = (
        simulate(parse(data), trace, trace_name="test", command="pytest")[0] for data in (own, policy)
    )
    assert (of_engine.requests.total, of_engine.requests.failed) == (len(trace), 0)
    assert of_policy.metrics == of_engine.metrics
