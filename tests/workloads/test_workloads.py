"""Workloads by name and by file: shipped ones, settings behind a colon, workload files, mixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, TraceError
from pdplugins.workloads import sources, traces, transform
from tests.refusals import refusal


@pytest.mark.moderate
@pytest.mark.parametrize("name", sources.shipped())
def test_every_shipped_workload_is_made_from_its_name(name: str) -> None:
    made = traces.read(name)
    assert transform.total(made) > 300
    assert made[0].arrival_s == 0.0
    assert made == traces.read(name)


def test_rapids_two_phases_are_as_in_the_paper() -> None:
    made = traces.read("rapid-two-phase")
    assert [(r.isl_tokens, r.osl_tokens) for r in made] == [(8000, 128)] * 1000 + [(500, 500)] * 1000


def test_settings_behind_the_name_go_over_the_files() -> None:
    made = traces.read("rapid-two-phase:requests=3,arrivals.rate=2")
    assert len(made) == 6
    gamma = traces.read("synthetic:requests=50,arrivals.kind=gamma,arrivals.rate=4,arrivals.cv=2,pairs=[[7,8],[9,8]]")
    assert (len(gamma), {r.isl_tokens for r in gamma}) == (50, {7, 9})
    assert traces.read("synthetic:requests=50,arrivals={kind=gamma,rate=4,cv: 2},pairs=[[7,8],[9,8]]") == gamma


def test_a_workload_file_may_name_a_reader_a_generator_or_a_mix(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + "7,8\n" * 40)
    reader = tmp_path / "reader.yaml"
    reader.write_text("workload: vidur-csv\npath: lengths.csv\nrate: 2\n")
    assert [r.isl_tokens for r in traces.read(reader)] == [7] * 40
    mix = tmp_path / "mix.yaml"
    other = "synthetic:isl_tokens=9,arrivals.kind=poisson,arrivals.rate=1"
    mix.write_text(
        f"mix:\n- {{trace: reader.yaml, rate: 1, clip_s: 30}}\n- {{trace: '{other}', rate: 3, clip_s: 30}}\n"
    )
    counts = [sum(r.isl_tokens == length for r in traces.read(mix)) for length in (7, 9)]
    assert counts == pytest.approx([30, 90], rel=0.4)


@pytest.mark.parametrize(
    ("trace", "error", "said"),
    [
        ("synthetic:requests", ConfigError, "write it as key=value"),
        ("synthetic:[", ConfigError, "write it as key=value"),
        ("synthetic:rate=4", ConfigError, "unknown key 'rate'; valid keys here are arrivals"),
        ("synthetic:requests=few", ConfigError, "requests: must be a whole number"),
        ("nothing-of-the-kind", TraceError, "no such trace; published traces"),
        ("nothing:a=1", TraceError, "no such trace"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_line(trace: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        traces.read(trace)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mix: [}\n", "line 1, column 7: not YAML"),
        ("- 1\n", "line 1: a workload file has keys"),
        ("mix: []\n", "mix: must have 1 or more entries"),
        ("mix: [{trace: synthetic, weight: 2}]\n", "unknown key 'mix.0.weight'"),
        ("workload: nobody\n", "workload: there is no 'nobody'"),
    ],
)
def test_a_workload_file_that_is_wrong_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises((TraceError, ConfigError), match=said) as raised:
        traces.read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: [a]", "workload: must be a text (got ['a'])"),
        ("workload: vidur-csv\npath: 3", "path: must be a text (got 3)"),
        ("mix: [{rate: 3}]", "mix.0.trace: must be given"),
        ("seed: -1", "workload synthetic: seed: must be at least 0 (got -1)"),
        ("arrivals: {kind: gamma, rate: 4}", "workload synthetic: arrivals.cv: must be given"),
        (
            "arrivals: {kind: poisson, cv: 1, rate: 4}",
            "workload synthetic: unknown key 'arrivals.cv'; valid keys here are kind, rate",
        ),
        (
            "arrivals: {kind: later}",
            "workload synthetic: arrivals.kind: must be one of 'constant', 'poisson', 'gamma', 'mmpp', 'ramp', "
            "'closed' (got 'later')",
        ),
        (
            "isl_tokens: many",
            "workload synthetic: isl_tokens: must be a number, or keys with values such as {kind: lognormal, median: "
            "1200, sigma: 0.6} (got 'many')",
        ),
        ("isl_tokens: -3", "workload synthetic: isl_tokens.value: must be at least 0 (got -3)"),
        (
            "phases: [{osl_tokens: {kind: uniform, low: 5, high: 1}}]",
            "workload synthetic: phases.0.osl_tokens: low is 5, above high, which is 1; give the smaller one as low "
            "(got {'high': 1, 'kind': 'uniform', 'low': 5})",
        ),
        ("requests: true", "workload synthetic: requests: must be a number (got true)"),
        (
            "arrivals: {kind: poisson, rate: true}",
            "workload synthetic: arrivals.rate: must be a number (got true)",
        ),
        (
            "phases: [{}, {arrivals: {kind: poisson, rate: true}}]",
            "workload synthetic: phases.1.arrivals.rate: must be a number (got true)",
        ),
        (
            "isl_tokens: {kind: fixed, value: true}",
            "workload synthetic: isl_tokens.value: must be a number (got true)",
        ),
        ("pairs: [[true, 5]]", "workload synthetic: pairs.0.0: must be a number (got true)"),
        ("mix: [{trace: demo, rate: true}]", "mix.0.rate: must be a number (got true)"),
        ("pairs: [[a, 1]]", "workload synthetic: pairs.0.0: must be a whole number (got 'a')"),
    ],
)
def test_what_a_workload_file_should_say_is_told_in_plain_words(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    assert refusal(lambda: traces.read(path)) == f"{path}: {message}"
