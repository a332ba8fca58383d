"""Trace readers: what they read, what they refuse and how they say it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdplugins import hookimpl
from pdplugins.errors import ConfigError, TraceError
from pdplugins.registry import Plugin, default_registry
from pdplugins.types import TraceRequest
from pdplugins.workloads import azure, jsonl, lazy, plugin, traces

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}

{"timestamp": 30535, "input_length": 600, "output_length": 1}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def test_an_azure_trace_starts_at_zero(tmp_path: Path) -> None:
    assert traces.read(write(tmp_path, AZURE)) == [TraceRequest(0.0, 4808, 10), TraceRequest(0.052, 3180, 8)]


def test_azure_columns_may_come_in_any_order_with_time_zone_and_bom(tmp_path: Path) -> None:
    text = "\ufeffTIMESTAMP,GeneratedTokens,ContextTokens\r\n2024-05-10 00:00:00.009930+00:00,7,9\r\n"
    assert traces.read(write(tmp_path, text)) == [TraceRequest(0.0, 9, 7)]


def test_a_mooncake_trace_keeps_its_blocks(tmp_path: Path) -> None:
    first, second = traces.read(write(tmp_path, MOONCAKE))
    assert first == TraceRequest(0.0, 6955, 52, (46, 47))
    assert second == TraceRequest(3.053, 600, 1)


def test_requests_come_out_in_order_of_arrival(tmp_path: Path) -> None:
    rows = "".join(f'{{"timestamp": {t}, "input_length": {t}, "output_length": 1}}\n' for t in (300, 100, 200))
    assert [r.isl_tokens for r in traces.read(write(tmp_path, rows))] == [100, 200, 300]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("TIMESTAMP,ContextTokens\n", "line 1: column GeneratedTokens is missing"),
        (AZURE + "yesterday,1,1\n", "line 4, column TIMESTAMP: 'yesterday'"),
        (AZURE + "2023-11-16 18:17:05,many,1\n", "line 4, column ContextTokens: 'many'"),
        (AZURE + "2023-11-16 18:17:05,5,0\n", "line 4, column GeneratedTokens: '0'"),
        (AZURE + "2023-11-16 18:17:05,5\n", "line 4, column GeneratedTokens"),
        ('{"timestamp": 0, "input_length": 1', "line 1, column 35: not JSON"),
        (MOONCAKE + '{"timestamp": 0, "a": 1, "b": 2, "b": 2}', "line 4: key 'b' stands twice; keep one of them"),
        (MOONCAKE + '{"rounds": [{"gap": 1, "gap": 2}]}', "line 4: key 'gap' stands twice"),
        ('{"timestamp": 0, "hash_ids": ' + "[" * 100_000, "line 1, column 1: not JSON"),
        (MOONCAKE + '{"timestamp": "x", "input_length": 1, "output_length": 1}', "line 4, column timestamp: 'x'"),
        (MOONCAKE + '{"timestamp": NaN, "input_length": 1, "output_length": 1}', "line 4, column timestamp: 'nan'"),
        (MOONCAKE + '{"timestamp": 0, "input_length": 1}', "line 4, column output_length: missing"),
        (MOONCAKE + '{"timestamp": 0, "input_length": 1.5, "output_length": 1}', "line 4, column input_length"),
        (MOONCAKE + '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": "a"}', "column hash_ids"),
        (MOONCAKE + "[1]", "line 4, column 1: '[1]' is not a JSON object"),
        ("when,what\n1,2\n", "not a trace format known here (agentic-csv, azure-csv, mooncake-jsonl, servegen"),
        ("", "line 1: empty, or not a trace format known here"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request in it"),
    ],
)
def test_what_is_malformed_is_named_by_file_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as error:
        traces.read(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_trace_says_where_the_data_sets_are_published(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"Azure/AzurePublicDataset.*kvcache-ai/Mooncake"):
        traces.read(tmp_path / "none.csv")


def test_a_trace_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(b"\x1f\x8b\x08\xff\xfe")
    with pytest.raises(TraceError, match="unpack it first"):
        traces.read(path)


def test_the_format_can_be_named_and_an_unknown_name_lists_the_choices(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    assert len(traces.read(path, "azure-csv")) == 2
    with pytest.raises(
        ConfigError, match="agentic-csv, azure-csv, mooncake-jsonl, servegen, synthetic, taubench-csv, vidur-csv"
    ):
        traces.read(path, "azure")


def test_a_workload_of_another_plugin_reads_its_own_format(tmp_path: Path, registry, add_plugin) -> None:
    def lines(_settings: object, path: Path) -> list[TraceRequest]:
        if not path.read_text().startswith("mine"):
            raise TraceError(f"{path}: not mine")
        return [TraceRequest(0.0, 1, 1)]

    @hookimpl
    def pd_register_workloads(register) -> None:
        register("mine", lines)

    registry.add(Plugin("workloads", "pdplugins", "0"), plugin)
    add_plugin("mine", pd_register_workloads=pd_register_workloads)
    assert traces.read(write(tmp_path, "mine\n"), registry=registry) == [TraceRequest(0.0, 1, 1)]


def test_requests_without_blocks_get_blocks_that_nobody_shares(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    jsonl.write_mooncake([TraceRequest(0.0, 1025, 1), TraceRequest(0.1, 10, 1, (7,)), TraceRequest(0.2, 10, 1)], path)
    blocks = [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]
    assert [len(b) for b in blocks] == [3, 1, 1]
    assert len({x for b in blocks for x in b}) == 5


lengths = st.integers(1, 100_000)
requests = st.builds(
    TraceRequest,
    st.integers(0, 10_000_000).map(lambda ms: ms / 1e3),
    lengths,
    lengths,
    st.lists(st.integers(0, 999), min_size=1, max_size=3).map(tuple),
)


@pytest.mark.moderate
@given(st.lists(requests, min_size=1, max_size=8))
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, made: list[TraceRequest]) -> None:
    """Up to where it starts: reading shifts the first request to 0."""
    path = tmp_path_factory.mktemp("traces") / "t.jsonl"
    jsonl.write_mooncake(made, path)
    start_s = min(r.arrival_s for r in made)
    back = traces.read(path)
    assert [(r.isl_tokens, r.osl_tokens, r.blocks) for r in back] == [
        (r.isl_tokens, r.osl_tokens, r.blocks) for r in sorted(made, key=lambda r: r.arrival_s)
    ]
    expected = sorted(r.arrival_s - start_s for r in made)
    assert [r.arrival_s for r in back] == pytest.approx(expected, abs=1e-3)


def test_the_workloads_are_registered() -> None:
    assert {"azure-csv", "mooncake-jsonl", "synthetic"} <= set(default_registry().names("workload"))


@pytest.mark.parametrize("zone", ["", "+00:00", "+02:00"])
def test_a_large_azure_trace_reads_the_same_at_once_as_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    stamps = ("2023-11-16 18:17:03.9799609", "2023-11-16 18:17:04", "2023-11-16 18:59:59.1")
    rows = "".join(f"{stamp}{zone},{isl},7\n" for isl, stamp in enumerate(stamps, start=1))
    path = write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    slow = traces.read(path)
    monkeypatch.setattr(azure, "LARGE_BYTES", 0)
    assert azure._at_once(path) is not None
    assert traces.read(path) == slow


@pytest.mark.parametrize(
    "line", ["yesterday,1,1", "2023-11-16 18:17:05,many,1", "2023-11-16 18:17:05,5,0", "x,5", ",5,5"]
)
def test_what_is_malformed_in_a_large_trace_is_named_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(azure, "LARGE_BYTES", 0)
    with pytest.raises(TraceError, match="line 4, column"):
        traces.read(write(tmp_path, f"{AZURE}{line}\n"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("synthetic:duration_s=inf", "duration_s: must be a finite number"),
        ("synthetic:arrivals.rate=3", "arrivals: say 'kind' too"),
        (
            "synthetic:arrivals.kind=poisson,arrivals.rate=1,arrivals.burst=3",
            "unknown key 'arrivals.burst'; valid keys here are kind, rate",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        traces.read(spec)


def test_a_mix_that_is_part_of_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("mix: [{trace: b.yaml}]")
    (tmp_path / "b.yaml").write_text("mix: [{trace: a.yaml}]")
    with pytest.raises(TraceError, match=r"a\.yaml: a part of this mix is the mix itself"):
        traces.read(tmp_path / "a.yaml")


def test_a_mix_of_itself_is_refused_before_any_of_its_traces_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_of_source", lambda *_: pytest.fail("a trace was read"))
    (tmp_path / "m.yaml").write_text("mix: [{trace: 'synthetic:requests=300000'}, {trace: m.yaml}]")
    with pytest.raises(TraceError, match=r"m\.yaml: a part of this mix is the mix itself"):
        traces.read(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("depth", "each", "said"),
    [(41, 1, "w17.yaml: more than 16 mixes within one another"), (14, 2, "more than 1000 parts of mixes together")],
)
def test_mixes_of_mixes_are_bounded(tmp_path: Path, depth: int, each: int, said: str) -> None:
    for number in range(1, depth):
        parts = ", ".join([f"{{trace: w{number + 1}.yaml}}"] * each)
        (tmp_path / f"w{number}.yaml").write_text(f"mix: [{parts}]")
    (tmp_path / f"w{depth}.yaml").write_text("mix: [{trace: 'synthetic:requests=1'}]")
    with pytest.raises(TraceError, match=said):
        traces.read(tmp_path / "w1.yaml")


def test_a_mix_may_have_the_same_mix_twice(tmp_path: Path) -> None:
    (tmp_path / "outer.yaml").write_text("mix: [{trace: inner.yaml}, {trace: inner.yaml}]")
    (tmp_path / "inner.yaml").write_text("mix: [{trace: 'synthetic:requests=3'}, {trace: 'synthetic:requests=2'}]")
    assert len(traces.read(tmp_path / "outer.yaml")) == 10


def test_a_folder_with_the_name_of_a_workload_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert traces.read("demo")
    assert next(lazy.requests("demo"))
    with pytest.raises(TraceError, match="other: Is a directory"):
        traces.read("other")
