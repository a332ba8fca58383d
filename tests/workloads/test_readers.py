"""Readers of data without arrival times, and the JSON lines that hold sessions."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins.errors import ConfigError, TraceError
from pdplugins.registry import NoSettings
from pdplugins.types import Round, Terms, TraceRequest
from pdplugins.workloads import azure, jsonl, lazy, rows, traces
from pdplugins.workloads.transform import Transform
from tests.refusals import refusal
from tests.workloads.files import AGENTIC, write

TAUBENCH = "session,round,input_tokens_est,output_tokens_est\nx,0,1555,22\nx,1,1585,117\nx,2,1600,37\ny,0,9,1\n"
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n20,0,20,0\n"


def test_an_agentic_session_repeats_what_was_cached(tmp_path: Path) -> None:
    a, b = traces.read(write(tmp_path, AGENTIC))
    assert list(a.turns()) == [(0, 15818, 154), (15808, 16003, 99), (8999, 9000, 1)]
    assert [later.gap_s for later in a.rounds] == [9.0, 600.0]
    assert (b.isl_tokens, b.rounds, b.arrival_s > 0) == (200, (), True)


def test_a_tau_bench_session_repeats_all_of_the_dialogue(tmp_path: Path) -> None:
    x, y = traces.read(write(tmp_path, TAUBENCH))
    assert list(x.turns()) == [(0, 1555, 22), (1577, 1585, 117), (1702, 1703, 37)]
    assert y.rounds == ()


def test_vidur_has_lengths_and_the_times_are_drawn(tmp_path: Path) -> None:
    first, second = traces.read(write(tmp_path, VIDUR))
    assert (first.isl_tokens, first.osl_tokens, second.isl_tokens, second.osl_tokens) == (3772, 54, 20, 1)


@pytest.mark.parametrize("text", [AGENTIC, TAUBENCH, VIDUR])
def test_settings_of_a_reader_come_with_its_name(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    name = {AGENTIC: "agentic-csv", TAUBENCH: "taubench-csv", VIDUR: "vidur-csv"}[text]
    slow, fast = (traces.read(f"{name}:path={path},rate={rate}") for rate in (0.5, 5))
    assert slow[-1].arrival_s == pytest.approx(10 * fast[-1].arrival_s, rel=1e-3)
    assert traces.read(f"{name}:path={path},seed=1") != traces.read(f"{name}:path={path},seed=2")
    with pytest.raises(ConfigError, match=f"{name}: unknown key 'sped'"):
        traces.read(f"{name}:path={path},sped=1")


def test_only_the_first_sessions_are_kept(tmp_path: Path) -> None:
    assert len(traces.read(f"agentic-csv:path={write(tmp_path, AGENTIC)},sessions=1")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AGENTIC + "b,0,1,soon,n,m,9,9,0,0\n", "line 6, column t_s: 'soon'"),
        (AGENTIC + "b,0,1,1.0,n,m,0,9,0,0\n", "line 6, column input_tokens: '0'"),
        (AGENTIC + "b,0,1,1.0,n,m,9\n", "line 6, column output_tokens"),
        (AGENTIC + "b,0,1,1,0,n,m,9,9,0,0\n", "line 6: more cells than the header has columns"),
        (AGENTIC + "a,0,3,1.0,n,m,9,9,0,0\n", "line 6, column session: 'a' is not that of the row before"),
        (AGENTIC.splitlines()[0] + "\na,0,5,1.0,n,m,9,9,0,0\n", "line 2, column session: 'a' is not that of the row"),
        (TAUBENCH + "x,3,9,9\n", "line 6, column session: 'x' is not that of the row before"),
        (TAUBENCH + "y,one,9,9\n", "line 6, column round: 'one'"),
        (VIDUR + "9,many,9,9\n", "line 4, column num_decode_tokens: 'many'"),
        ("session,round,t_s,input_tokens\n", "line 1: column output_tokens is missing; an agentic trace has"),
        ('"' + "x" * 200_000, "line 1: empty, or not a trace format known here"),
    ],
)
def test_what_is_malformed_is_named_by_file_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as error:
        traces.read(path)
    assert str(error.value).startswith(f"{path}: {said}")


TWICE = "TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n2023-11-16 18:17:03,10,5,900\n"
QUOTED = '"TIMESTAMP","ContextTokens","GeneratedTokens"\n"2023-11-16 18:17:03","10","5"\n'


@pytest.mark.parametrize("large", [1, 1_000_000])
def test_a_column_that_stands_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(azure, "LARGE_BYTES", large)
    with pytest.raises(TraceError, match="line 1: column ContextTokens stands twice; keep one of them"):
        traces.read(write(tmp_path, TWICE))


@pytest.mark.parametrize("large", [1, 1_000_000])
def test_names_of_columns_may_be_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(azure, "LARGE_BYTES", large)
    (read,) = traces.read(write(tmp_path, QUOTED))
    assert (read.isl_tokens, read.osl_tokens) == (10, 5)


# --- Azure, read at once ---

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,100,20\n"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is taken for a large one."""
    monkeypatch.setattr(azure, "LARGE_BYTES", 1)


@pytest.mark.usefixtures("at_once")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("2023-11-16 18:17:03," + "9" * 30 + ",20", "ContextTokens"),
        ("2023-11-16 18:17:03,5," + "9" * 5000, "GeneratedTokens"),
        ("2023-11-16 18:17:03,inf,20", "ContextTokens"),
        ("2023-11-16 18:17:03,5.0,20", "ContextTokens"),
        ("2023-11-16 18:17:03,5,1e2", "GeneratedTokens"),
        ("2023-11-16 18:17:03,+5,20", "ContextTokens"),
        ("2023-11-16 18:17:03,5,0", "GeneratedTokens"),
        ("2023-11-16 18:17:03,10000001,20", "ContextTokens"),
        ("2023-11-16 18:17:03,nan,20", "ContextTokens"),
        ("True,5,20", "TIMESTAMP"),
        ("now,5,20", "TIMESTAMP"),
        ("NaT,5,20", "TIMESTAMP"),
        ("5,5,20", "TIMESTAMP"),
    ],
    ids=lambda value: value[:30],
)
@pytest.mark.parametrize("head", [AZURE, AZURE.splitlines(keepends=True)[0]], ids=["later", "first"])
def test_a_large_azure_trace_is_told_its_malformed_cell(tmp_path: Path, head: str, row: str, column: str) -> None:
    path = write(tmp_path, f"{head}{row}\n", "t.csv")
    with pytest.raises(TraceError, match=f"{path}: line {1 + len(head.splitlines())}, column {column}: "):
        traces.read(path)


@pytest.mark.usefixtures("at_once")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("x,2023-11-16 18:17:03,5,20", "line 3: more cells than the header has columns"),
        ("2023-11-16 18:17:05,4,808,10", "line 3: more cells than the header has columns"),
        ("1700-01-01 00:00:00.0000001,5,20", "118293 days from its first arrival to its last"),
    ],
)
def test_a_large_azure_trace_is_told_its_malformed_row(tmp_path: Path, row: str, said: str) -> None:
    path = write(tmp_path, f"{AZURE}{row}\n", "t.csv")
    with pytest.raises(TraceError, match=f"{path}: {said}"):
        traces.read(path)


@pytest.mark.usefixtures("at_once")
def test_a_large_azure_trace_without_rows_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request in it"):
        traces.read(write(tmp_path, AZURE.splitlines(keepends=True)[0], "t.csv"))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("suffix", [".zip", ".gz", ".bz2", ".xz", ".tar"])
def test_a_name_does_not_make_an_azure_trace_a_compressed_one(tmp_path: Path, suffix: str) -> None:
    (read,) = traces.read(write(tmp_path, AZURE, f"trace{suffix}"))
    assert (read.isl_tokens, read.osl_tokens) == (100, 20)
    (tmp_path / f"packed{suffix}").write_bytes(gzip.compress(AZURE.encode()))
    with pytest.raises(TraceError, match="not text; unpack it first if it is compressed"):
        traces.read(tmp_path / f"packed{suffix}", "azure-csv")


@pytest.mark.usefixtures("at_once")
def test_a_huge_azure_trace_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, AZURE)
    with path.open("rb+") as file:
        file.truncate(azure.HUGE_BYTES + 1)  # a hole, which takes no room on the disk, and has no end of line
    monkeypatch.setattr(rows, "LONGEST_LINE", 1000)
    with pytest.raises(TraceError, match="line 3: longer than 1000 characters; is it the right file"):
        traces.read(path)


# --- JSON lines ---

micros = st.integers(0, 10_000_000_000).map(lambda us: us / 1e6)
lengths = st.integers(1, 100_000)
rounds = st.builds(Round, micros, lengths, lengths, st.none() | st.integers(0, 100_000))
objectives = st.none() | st.integers(1, 10_000_000).map(lambda us: us / 1e6)
weights = st.floats(1e-3, 1e3)
terms = st.builds(Terms, st.integers(-9, 9), weights, objectives, objectives, st.none() | st.text(max_size=5), weights)
sessions = st.builds(
    TraceRequest,
    micros,
    lengths,
    lengths,
    st.lists(st.integers(0, 999), max_size=3).map(tuple),
    st.none() | st.text(max_size=5),
    st.lists(rounds, max_size=3).map(tuple),
    st.none() | terms,
)


@pytest.mark.moderate
@given(st.lists(sessions, min_size=1, max_size=8))
def test_sessions_that_are_written_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, made: list[TraceRequest]
) -> None:
    path = tmp_path_factory.mktemp("traces") / "t.jsonl"
    jsonl.write(made, path)
    assert [
        TraceRequest(round(r.arrival_s, 6), r.isl_tokens, r.osl_tokens, r.blocks, r.session, r.rounds, r.terms)
        for r in jsonl.mooncake_jsonl(NoSettings(), path)
    ] == made


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ('"priority": 1.5', "column priority: '1.5' is not a whole number"),
        ('"weight": 0', "column weight: '0' is not a number from 1e-06 up"),
        ('"ttft": NaN', "column ttft: 'nan' is not a number"),
        ('"tpot": "fast"', "column tpot: 'fast' is not a number"),
        ('"tenant": 7', "column tenant: '7' is not a name"),
    ],
)
def test_malformed_terms_are_named(tmp_path: Path, field: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(f'{{"timestamp": 0, "input_length": 1, "output_length": 1, {field}}}\n')
    with pytest.raises(TraceError, match=said):
        traces.read(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ("5", "column rounds: '5' is not a list"),
        ("[5]", r"column rounds\[0\]: '5' is not a JSON object"),
        ('[{"gap": -1, "new_length": 1, "output_length": 1}]', r"column rounds\[0\].gap: '-1'"),
        ('[{"gap": 1, "output_length": 1}]', r"column rounds\[0\].new_length: missing"),
    ],
)
def test_a_malformed_round_is_named(tmp_path: Path, later: str, said: str) -> None:
    line = f'{{"timestamp": 0, "input_length": 1, "output_length": 1, "rounds": {later}}}'
    with pytest.raises(TraceError, match=f"line 1, {said}"):
        traces.read(write(tmp_path, line))


def test_a_gap_longer_than_any_trace_is_named(tmp_path: Path) -> None:
    round_ = '{"gap": %s, "new_length": 5, "output_length": 5}'
    line = '{"timestamp": 0, "input_length": 1, "output_length": 1, "rounds": [%s]}'
    long, longer = 300 * 86_400_000, 1e11
    path = write(tmp_path, line % f"{round_ % 1}, {round_ % longer}")
    with pytest.raises(TraceError, match=r"line 1, column rounds\[1\].gap: '100000000000.0' is not .* to 31622400000;"):
        traces.read(path)
    path = write(tmp_path, line % f"{round_ % long}, {round_ % long}")
    for read in (traces.read, lambda path: list(lazy.requests(path))):
        with pytest.raises(TraceError, match="a session has 600 days of gaps between its rounds, and 366 are the most"):
            read(path)
    assert traces.read(write(tmp_path, line % (round_ % long)))[0].rounds[0].gap_s == 300 * 86_400


def test_a_drawn_gap_longer_than_any_trace_is_refused() -> None:
    sessions = "sessions={rounds: 2, gap_s: 100000000000, new_tokens: 1}"
    with pytest.raises(TraceError, match="days of gaps between its rounds"):
        traces.read(f"synthetic:requests=2,{sessions}")


def test_dynamos_replay_is_not_given_sessions(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="single requests only: use pdplugins simulate"):
        jsonl.write_mooncake([TraceRequest(0, 1, 1, rounds=(Round(1, 1, 1),))], tmp_path / "t.jsonl")


PUBLISHED = {
    "weka-agentic/rounds_dedup.csv": (503, 29_724),
    "taubench/gpt4o_airline_rounds.csv": (200, 2_454),
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv": (28_257, 28_257),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_whole(name: str) -> None:
    """Needs PDPLUGINS_TRACES, a folder with the files as docs/workloads.md names them."""
    path = Path(os.environ.get("PDPLUGINS_TRACES", "")) / name
    if not path.is_file():
        pytest.skip(f"no {name} under PDPLUGINS_TRACES")
    read = traces.read(path)
    assert (len(read), sum(1 + len(request.rounds) for request in read)) == PUBLISHED[name]


CELLS = st.sampled_from(
    ["", "0", "1", "-1", "9" * 30, "1e999", "nan", "1.5", "x", '"', "a\0b", "2023-11-16 18:17:03", "[]"]
)
ROWS = st.lists(st.lists(CELLS | st.text(max_size=5), max_size=9).map(",".join), max_size=4).map("\n".join)
HEADS = st.sampled_from(
    [text.splitlines()[0] for text in (AGENTIC, TAUBENCH, VIDUR)] + ["TIMESTAMP,ContextTokens,GeneratedTokens"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "session", "rounds", "x"])
OBJECTS = st.fixed_dictionaries({"timestamp": st.just(0) | VALUES, "input_length": st.just(5) | VALUES}).flatmap(
    lambda row: st.dictionaries(NAMES, VALUES | st.just(3), max_size=4).map(lambda more: row | more)
)
FILES = (
    st.builds("{}\n{}".format, HEADS, ROWS).map(str.encode)
    | st.lists(OBJECTS.map(json.dumps), max_size=3).map("\n".join).map(str.encode)
    | st.binary(max_size=60)
)


@pytest.mark.moderate
@given(FILES, st.sampled_from([None, "mooncake-jsonl", "azure-csv", "agentic-csv", "taubench-csv", "vidur-csv"]))
def test_any_file_is_a_trace_or_an_error_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, workload: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    said = refusal(lambda: traces.read(path, workload))
    assert "\n" not in said
    assert len(said) < len(str(path)) + 800


@pytest.mark.moderate
@given(ROWS, st.binary(max_size=40) | VALUES.map(json.dumps).map(str.encode))
def test_any_servegen_folder_is_a_trace_or_an_error_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, windows: str, lengths: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "chunks"
    folder.mkdir(exist_ok=True)
    (folder / "chunk-0-trace.csv").write_text(windows)
    (folder / "chunk-0-dataset.json").write_bytes(lengths)
    assert "\n" not in refusal(lambda: traces.read(folder, "servegen"))


# --- what nobody means ---


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            '"timestamp": ' + "9" * 400,
            "line 2, column timestamp: '9+' is not a number of milliseconds from 0 to 1e\\+15",
        ),
        ('"timestamp": 1e300', "line 2, column timestamp: '1e\\+300' is not a number of milliseconds"),
        (
            '"timestamp": 0, "rounds": [{"gap": 1e300, "new_length": 1, "output_length": 1}]',
            r"line 2, column rounds\[0\].gap: '1e\+300' is not a number of milliseconds",
        ),
        (
            '"timestamp": 0, "weight": ' + "9" * 400,
            "line 2, column weight: '9+' is not a number from 1e-06 up, of at most",
        ),
    ],
)
def test_times_that_no_clock_can_tell_are_named(tmp_path: Path, field: str, said: str) -> None:
    lengths = '"input_length": 1, "output_length": 1'
    with pytest.raises(TraceError, match=said):
        traces.read(write(tmp_path, f'{{"timestamp": 0, {lengths}}}\n{{{lengths}, {field}}}\n'))


def test_a_cell_that_is_too_long_for_csv_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, VIDUR + "1" * 200_000 + ",1,1,1\n")
    with pytest.raises(TraceError, match=r"line 4, column 1: not CSV .*; fix or drop the line"):
        traces.read(path)


def test_a_line_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_LINE", 1000)
    with pytest.raises(TraceError, match="line 1: longer than 1000 characters; is it the right file"):
        traces.read(write(tmp_path, "x" * 5000))


@pytest.mark.parametrize("workload", [None, "azure-csv"])
def test_a_pipe_is_refused_unread_because_a_trace_is_read_more_than_once(tmp_path: Path, workload: str | None) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraceError, match=f"{path}: a pipe or a device, .*; write it to a file first"):
            traces.read(path, workload)


def test_a_name_that_no_file_can_have_is_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="File name too long"):
        traces.read("a" * 5000)
    workload = write(tmp_path, f"workload: vidur-csv\npath: {'a' * 5000}\n", "load.yaml")
    with pytest.raises(TraceError, match="File name too long"):
        traces.read(workload)


@pytest.mark.parametrize("rate", [None, 1e-4])
def test_a_trace_that_is_years_long_has_a_wrong_time_in_it(tmp_path: Path, rate: float | None) -> None:
    lines = [
        f'{{"timestamp": {at}, "input_length": 1, "output_length": 1}}\n' for at in (0, 9e12 if rate is None else 9)
    ]
    path = write(tmp_path, "".join(lines * 2000), "t.jsonl")
    with pytest.raises(TraceError, match=r"days from its first arrival to its last, and 366 are the most"):
        Transform.of(rate=rate).apply(traces.read(path))
    if rate is None:
        unsorted = write(tmp_path, "".join(sorted(lines * 2)), "u.jsonl")
        with pytest.raises(TraceError, match="366 are the most"):
            list(lazy.requests(unsorted))


def test_dynamos_replay_gets_numbers_for_hashes_that_it_cannot_read(tmp_path: Path) -> None:
    kept = [
        TraceRequest(0, 1024, 1, blocks=(-5, 10**40)),
        TraceRequest(1, 1500, 1, blocks=(-5, 7)),
        TraceRequest(2, 9, 1),
    ]
    jsonl.write_mooncake(kept, tmp_path / "t.jsonl")
    ids = [json.loads(line)["hash_ids"] for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert ids == [[0, 1], [0, 2], [3]]
    jsonl.write_mooncake([TraceRequest(0, 1024, 1, blocks=(5, 10**18))], tmp_path / "t.jsonl")
    assert json.loads((tmp_path / "t.jsonl").read_text())["hash_ids"] == [5, 10**18]


def test_a_hash_below_zero_is_named(tmp_path: Path) -> None:
    """A mix tells the blocks of its parts apart by counting from 0 on."""
    row = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [-1]}
    with pytest.raises(TraceError, match=r"column hash_ids: '\[-1\]' is not a list of whole numbers from 0 on"):
        traces.read(write(tmp_path, json.dumps(row) + "\n", "t.jsonl"))
