"""The reader of ServeGen's clients."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import pytest

from pdplugins.errors import TraceError
from pdplugins.workloads import servegen, traces
from tests.workloads.files import write


def test_servegen_clients_keep_their_rate_burstiness_and_lengths(clients: Path) -> None:
    made = traces.read(f"servegen:path={clients},scale=1,duration_s=1800")
    regular = [r for r in made if r.isl_tokens in (10, 100)]
    bursty = [r for r in made if r.isl_tokens in (20, 200)]
    assert len(regular) + len(bursty) == len(made)
    assert len(regular) / 1200 == pytest.approx(2, rel=0.1)
    assert len(bursty) / 1200 == pytest.approx(8, rel=0.15)
    cvs = []
    for part in (regular, bursty):
        gaps_s = [b.arrival_s - a.arrival_s for a, b in pairwise(part)]
        cvs.append(stdev(gaps_s) / mean(gaps_s))
    assert cvs == pytest.approx([0.25, 5**0.5], rel=0.2)
    assert mean(r.isl_tokens == 100 for r in regular) == pytest.approx(0.75, abs=0.05)
    assert {r.osl_tokens for r in made} == {5}


def test_servegen_can_be_scaled_cut_and_limited_to_the_busiest(clients: Path) -> None:
    assert len(traces.read(f"servegen:path={clients},scale=0.1")) < 0.2 * 12000
    busiest = traces.read(f"servegen:path={clients},clients=1,start_s=600,duration_s=100,scale=1")
    assert {r.isl_tokens for r in busiest} == {20, 200}
    assert busiest[-1].arrival_s < 100
    assert traces.read(clients / "chunk-1-trace.csv")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("chunk-1-trace.csv", "0,1,1,Pareto,1,1\n", "line 1, column 4: 'Pareto' is not Gamma or Weibull"),
        ("chunk-1-trace.csv", "0,1,1,Gamma,1\n", "line 1, column 5: .* is not a row of six columns"),
        ("chunk-1-dataset.json", "{", "line 1, column 1: not a JSON object of windows"),
        (
            "chunk-1-dataset.json",
            '{"0": {"input_tokens": "{", "output_tokens": "{}"}}',
            "window 0, column input_tokens",
        ),
        ("chunk-1-dataset.json", '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}', "no length in any input_tok"),
    ],
)
def test_servegen_files_that_are_malformed_are_named(clients: Path, file: str, text: str, said: str) -> None:
    write(clients, text, file)
    with pytest.raises(TraceError, match=f"{file}: {said}"):
        traces.read(clients)


@pytest.mark.parametrize(
    "histogram",
    [
        "(" * 50_000,
        "{" + "-" * 50_000 + "1: 1.0}",
        "{" + "9" * 30 + ": 1.0}",
        "{" + "9" * 5000 + ": 1.0}",
        "{5: -1.0, 6: 2.0}",
        "{-5: 1.0}",
        "{-5: 1.0, 6: 1.0}",
        "{5: nan}",
        "{5: 1e999}",
        "{5: 1e308, 6: 1e308}",
        "{5: 0.0}",
        "{(1, 2): 1.0}",
        "{5: (1, 2)}",
        "{5: True}",
        "[5, 6]",
        "",
        "5: 1.0",
        {"5": 1.0},
        5,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_histogram_is_named(clients: Path, histogram: object) -> None:
    text = json.dumps({"0": {"input_tokens": "{5: 1}", "output_tokens": histogram}})
    path = write(clients, text, "chunk-1-dataset.json")
    with pytest.raises(
        TraceError, match=r"window 0, column output_tokens: not a histogram .*; drop this client"
    ) as error:
        traces.read(clients)
    assert len(str(error.value)) < len(str(path)) + 250


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"0":' * 50_000, "line 1, column 1: not a JSON object"),
        ('{"nan": {}}', "line 1, column 1: 'nan' is not a number from 0"),
        ('{"-1": {}}', "line 1, column 1: '-1' is not a number from 0"),
        ('{"' + "9" * 5000 + '": {}}', "line 1, column 1: '9+' is not a number from 0"),
        ('{"0": 5}', "window 0, column input_tokens: not a histogram"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_object_of_windows_is_named(clients: Path, text: str, said: str) -> None:
    write(clients, text, "chunk-1-dataset.json")
    with pytest.raises(TraceError, match=f"chunk-1-dataset.json: {said}"):
        traces.read(clients)


def test_histograms_of_many_lines_are_read_up_to_a_size(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(clients, "{\n" + "\n" * 1000, "chunk-1-dataset.json")
    monkeypatch.setattr(servegen, "MOST_CHARACTERS", 500)
    with pytest.raises(TraceError, match="line 500: more than 500 characters so far; is it the right file"):
        traces.read(clients)


MANY = "its rates ask for .* requests or more, and 10,000,000 are the most; lower scale, duration_s or clients"


@pytest.mark.parametrize(
    "windows",
    [
        "".join(f"{start},1e5,1,Gamma,1,1\n" for start in range(0, 600_000, 600)),
        "0,1e15,1,Gamma,1,1\n",
        "0,9e3,1,Gamma,1,1\n" * 2,
    ],
    ids=lambda windows: windows[:20],
)
def test_a_small_file_cannot_ask_for_requests_without_end(clients: Path, windows: str) -> None:
    write(clients, windows, "chunk-1-trace.csv")
    with pytest.raises(TraceError, match=f"{clients}: {MANY}"):
        traces.read(f"servegen:path={clients},scale=1,duration_s=1e6")


def test_arrivals_without_gaps_end_too(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servegen, "MOST_REQUESTS", 20_000)
    write(clients, "0,1,1,Weibull,0.01,1\n", "chunk-1-trace.csv")
    with pytest.raises(TraceError, match=r"ask for 2e\+04 requests or more, and 20,000 are the most"):
        traces.read(f"servegen:path={clients / 'chunk-1-trace.csv'},scale=1")


def test_a_rate_of_almost_nothing_is_no_request(clients: Path) -> None:
    path = write(clients, "0,5e-324,1,Gamma,1,1\n600,5e-324,1,Weibull,0.01,1\n", "chunk-1-trace.csv")
    with pytest.raises(TraceError, match="no request in it"):
        traces.read(path)


def test_a_client_without_its_lengths_says_where_they_are_published(clients: Path) -> None:
    (clients / "chunk-1-dataset.json").unlink()
    with pytest.raises(TraceError, match=r"chunk-1-dataset.json: no such trace; .*alibaba/ServeGen"):
        traces.read(clients)


@pytest.mark.timeout(60)
def test_very_many_empty_histograms_take_no_time(tmp_path: Path) -> None:
    write(tmp_path, "1200,1,1,Gamma,1,1\n", "chunk-0-trace.csv")
    windows = {
        f"{1199.0 - number / 1e3:.3f}": {"input_tokens": "{}", "output_tokens": "{}"} for number in range(200_000)
    }
    windows["0"] = {"input_tokens": "{5: 1}", "output_tokens": "{6: 1}"}
    write(tmp_path, json.dumps(windows), "chunk-0-dataset.json")
    assert {request.isl_tokens for request in traces.read(tmp_path / "chunk-0-trace.csv")} == {5}


def test_a_file_of_another_name_is_told_by_its_first_line(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    assert [one.isl_tokens for one in traces.read(write(tmp_path, text, "my-trace.csv"))] == [374]
