"""A running ``dynamo serve`` to test against, and a load to put on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pdplugins.workloads.arrivals import Poisson
from pdplugins.workloads.draws import Lognormal
from pdplugins.workloads.jsonl import write_mooncake
from pdplugins.workloads.synthetic import SyntheticSettings, synthetic
from tests.hosts.dynamo.local.serve import Serve


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    """Start ``dynamo serve`` with the given options; whatever is left of it is killed after the test."""
    running: list[Serve] = []

    def start(*arguments: str, **environment: str) -> Serve:
        temp = tmp_path / f"temp{len(running)}"
        temp.mkdir()
        running.append(Serve(list(arguments), temp, environment))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture
def quick_config(tmp_path: Path) -> Callable[..., str]:
    """Write a config with a planner that decides every second."""

    def write(gpu_budget: int, hold_s: float) -> str:
        path = tmp_path / "quick.yaml"
        planner = {"name": "dopd", "interval_s": 1, "hold_s": hold_s, "predictor": "last-value"}
        path.write_text(yaml.safe_dump({"deployment": {"gpu_budget": gpu_budget}, "planner": planner}))
        return str(path)

    return write


@pytest.fixture
def waves(tmp_path: Path) -> Callable[..., Path]:
    """Write a trace of consecutive waves, each (requests per second, seconds), lengths as in a real one."""

    def write(*shape: tuple[float, float], isl_tokens: int = 500, osl_tokens: int = 300) -> Path:
        requests, start_s = [], 0.0
        for seed, (rate, length_s) in enumerate(shape):
            wave = SyntheticSettings(
                seed=seed,
                duration_s=length_s,
                arrivals=Poisson(rate=rate),
                isl_tokens=Lognormal(median=isl_tokens, sigma=0.4, high=700),
                osl_tokens=Lognormal(median=osl_tokens, sigma=0.4, high=700),
            )
            requests += [replace(one, arrival_s=one.arrival_s + start_s) for one in synthetic(wave)]
            start_s += length_s
        path = tmp_path / "waves.jsonl"
        write_mooncake(requests, path)
        return path

    return write
