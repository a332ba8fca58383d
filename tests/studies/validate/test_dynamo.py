"""Dynamo's replay and the simulator on the same requests."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.studies.validate import dynamo
from pdplugins.studies.validate.commands import validate
from pdplugins.types import TraceRequest
from pdplugins.workloads.jsonl import write_mooncake


def requests() -> list[TraceRequest]:
    rng = random.Random(5)
    at, made = 0.0, []
    for _ in range(120):
        at += rng.expovariate(2.0)
        made.append(TraceRequest(round(at, 3), rng.randint(50, 3000), rng.randint(20, 200)))
    return made


def test_shaping_keeps_lengths_and_meets_the_rate() -> None:
    made = dynamo.shaped(requests(), 100, 8.0, one_token=True)
    assert len(made) == 100
    assert made[0].arrival_s == 0
    assert len(made) / made[-1].arrival_s == pytest.approx(8.0, rel=1e-3)
    assert [r.isl_tokens for r in made] == [r.isl_tokens for r in requests()[:100]]
    assert {r.osl_tokens for r in made} == {1}


@pytest.mark.dynamo
@pytest.mark.parametrize("options", [["--prefill", "8"], ["--prefill", "2", "--one-token"]])
def test_both_give_the_same_latencies_within_five_percent(options: list[str], tmp_path: Path) -> None:
    pytest.importorskip("dynamo.mocker")
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    write_mooncake(requests(), trace)
    done = CliRunner().invoke(validate, ["dynamo", "--trace", str(trace), *options, "--json", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["answered"] == {"dynamo": 120, "pdplugins": 120}
    assert found["largest_abs_error"] < 0.05
    assert ("itl_s" in found) is (options[-1] != "--one-token")


@pytest.mark.dynamo
def test_requests_that_dynamo_does_not_answer_are_told(tmp_path: Path) -> None:
    pytest.importorskip("dynamo.mocker")
    trace = tmp_path / "trace.jsonl"
    write_mooncake([*requests()[:3], TraceRequest(9.0, 1_000_000, 1_000_000)], trace)
    done = CliRunner().invoke(validate, ["dynamo", "--trace", str(trace)])
    assert isinstance(done.exception, ConfigError), done.output
    assert "Dynamo's replay answers 3 of 4 requests" in str(done.exception)
