"""A small question, and a search that takes a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pdplugins.studies.advise import search, traffic
from pdplugins.studies.advise.candidates import Question
from pdplugins.studies.advise.search import Advice
from pdplugins.studies.advise.traffic import Traffic
from pdplugins.workloads.transform import Transform

QUESTION = Question(
    profile="h100/llama-3.1-8b",
    gpus=3,
    ttft_s=1.0,
    tpot_s=0.05,
    startup_s=5.0,
    longest_tokens=5000,
    repeats=False,
)
SIZES = {"FIRST": 60, "SECOND": 100, "WHOLE": 200, "DRAW": 100}


def small_traffic(rate: float = 8.0) -> Traffic:
    """Return the traffic of half a minute."""
    return traffic.lengths(600, 60, Transform.of(rate=rate, clip_s=30.0), seed=0)


@contextmanager
def small_search() -> Iterator[None]:
    """Simulate few requests only."""
    with pytest.MonkeyPatch.context() as patch:
        for name, count in SIZES.items():
            patch.setattr(search, name, count)
        yield


def small_advice(rate: float = 8.0, *, jobs: int = 1, target: float = 0.95, **changes: float) -> Advice:
    """Return advice on small traffic."""
    with small_search():
        return search.advise(replace(QUESTION, **changes), small_traffic(rate), target=target, jobs=jobs, seed=0)
