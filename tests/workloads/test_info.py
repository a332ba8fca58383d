"""``pdplugins trace``: facts about a trace that follow from how it was made, plots, and files that read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.types import Round, TraceRequest
from pdplugins.workloads import sources, traces
from pdplugins.workloads.commands import trace_app
from pdplugins.workloads.info import Columns, chart, describe, dispersion

pytestmark = pytest.mark.moderate


def run(*arguments: str) -> str:
    done = CliRunner().invoke(trace_app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_counts_lengths_and_shared_prompts_are_those_of_the_trace() -> None:
    session = TraceRequest(4.0, 100, 10, session="s", rounds=(Round(2.0, 40, 5),))
    trace = [TraceRequest(0.0, 1024, 4, (1, 2)), TraceRequest(2.0, 1024, 4, (1, 3)), session]
    facts = describe(Columns.of(trace))
    assert (facts["arrivals"], facts["requests"], facts["sessions"], facts["duration_s"]) == (3, 4, 1, 4.0)
    assert facts["isl_tokens"]["max"] == 1024
    assert facts["history_tokens"]["mean"] == 110
    assert facts["shared_prompt_share"] == pytest.approx((512 + 110) / (1024 + 1024 + 100 + 150))
    assert facts["round_gap_s"]["p50"] == 2.0
    assert facts["gap_cv"] == 0.0


def test_burstiness_is_1_for_poisson_0_for_constant_and_more_for_bursts() -> None:
    expected = {
        "arrivals.kind=constant,arrivals.rate=4": (0.0, 0.0),
        "arrivals.kind=poisson,arrivals.rate=4": (1.0, 1.0),
        "arrivals.kind=gamma,arrivals.rate=4,arrivals.cv=3": (3.0, 9.0),  # renewal: the index tends to CV squared
    }
    for settings, (cv, index) in expected.items():
        facts = describe(Columns.of(traces.read(f"synthetic:duration_s=8000,{settings}")))
        assert facts["gap_cv"] == pytest.approx(cv, abs=0.15)
        assert facts["dispersion"]["60s"] == pytest.approx(index, rel=0.35, abs=0.05)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.booleans())
def test_any_trace_can_be_described_and_drawn(times_s: list[float], sessions: bool) -> None:
    rounds = (Round(0.0, 1, 1),) if sessions else ()
    columns = Columns.of([TraceRequest(at_s - min(times_s), 5, 1, rounds=rounds) for at_s in sorted(times_s)])
    assert json.loads(json.dumps(describe(columns), allow_nan=False))["arrivals"] == len(times_s)
    lines = chart(columns, width=40, height=4).splitlines()
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1


def test_two_whole_windows_are_needed_for_an_index() -> None:
    assert dispersion(np.array([0.0, 5.0, 19.9]), 10) is None
    assert dispersion(np.array([0.0, 5.0, 20.0]), 10) == pytest.approx(2.0)


def test_info_writes_facts_and_plots_that_open_offline(tmp_path: Path) -> None:
    facts, page = tmp_path / "facts.json", tmp_path / "plot.html"
    said = run("info", "sessions", "--clip-s", "60", "--json", str(facts), "--plot", str(page))
    data = json.loads(facts.read_text())
    assert f"{data['arrivals']} arrivals" in said
    assert data["duration_s"] < 60
    text = page.read_text()
    assert "arrivals per second" in text
    assert '<script src="http' not in text
    image = tmp_path / "plot.png"
    run("info", "sessions", "--max-requests", "5", "--plot", str(image))
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path: Path, suffix: str) -> None:
    trace, image = tmp_path / "a$\\foo$.jsonl", tmp_path / f"p{suffix}"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n')
    run("info", str(trace), "--plot", str(image))
    assert image.stat().st_size > 0


@pytest.mark.parametrize("name", sources.shipped())
def test_what_make_writes_reads_back_equal(tmp_path: Path, name: str) -> None:
    out = tmp_path / "made.jsonl"
    run("make", name, "--out", str(out))
    assert traces.read(out) == traces.read(name)


def test_what_cannot_be_written_is_said_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        run("make", "nothing", "--out", str(tmp_path / "no" / "x.jsonl"))
    with pytest.raises(ConfigError, match=r"--plot .*: name a file that ends in \.html, \.png"):
        run("info", "synthetic", "--plot", str(tmp_path / "x.gif"))
