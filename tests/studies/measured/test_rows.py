"""Measured rows of mixtures of experts: what is read, and what is counted as lacking."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.studies.measured.rows import Row, Skipped, half, read_rows

AGGREGATED = {
    "id": "one",
    "silicon_data_source": "source_file=a.csv; silicon_concurrency=16; measured=2025-12-15T00:00:00Z",
    "backend": "trtllm",
    "backend_version": "1.1.0rc2.post2",
    "model_path": "deepseek-ai/DeepSeek-V3",
    "system": "h200_sxm",
    "mode": "agg",
    "isl": "1024",
    "osl": "1024",
    "batch_size": "16",
    "tp_size": "8",
    "attention_dp_size": "1",
    "moe_tp_size": "1",
    "moe_ep_size": "8",
    "silicon_ttft_ms": "669.0",
    "silicon_tpot_ms": "20.19",
}
OLD = "source_file=a.csv; silicon_concurrency=16; measured=2025-10-10T00:00:00Z"
DISAGGREGATED = AGGREGATED | {
    "mode": "disagg",
    "backend_version": "0.8.1.post1",
    "silicon_data_source": "silicon_concurrency=72; measured=2026-02-14T00:00:00Z",
}


def read(tmp_path: Path, *raw: dict[str, str]) -> tuple[list[Row], Skipped]:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, sorted({name for row in raw for name in row}))
        writer.writeheader()
        writer.writerows(raw)
    return read_rows(path)


def only(tmp_path: Path, **changes: str) -> Row:
    rows, skipped = read(tmp_path, AGGREGATED | changes)
    assert skipped == {}
    (row,) = rows
    return row


def lacking(tmp_path: Path, raw: dict[str, str]) -> str:
    rows, skipped = read(tmp_path, raw)
    assert rows == []
    (why,) = skipped
    return why


def test_one_pool(tmp_path: Path) -> None:
    row = only(tmp_path)
    assert (row.source, row.mode, row.clients) == ("h200/deepseek-r1-trtllm", "aggregated", 16)
    assert row.pools.decode == (1, "tp8+ep8")
    assert row.pools.draft_tokens == 0


@pytest.mark.parametrize(
    ("degrees", "layout"),
    [
        (("8", "1", "8", "1"), "tp8"),
        (("64", "1", "8", "8"), "tp8+ep8"),  # both degrees on the same GPUs
        (("1", "64", "8", "8"), "dp8+ep8"),
        (("1", "8", "1", "8"), "dp8+ep8"),
        (("4", "1", "2", "2"), "tp2+ep2"),
        (("2", "", "4", "1"), "tp2+dp2"),
        (("1", "1", "1", "1"), "tp1"),
    ],
)
def test_layouts_as_rows_write_them(tmp_path: Path, degrees: tuple[str, ...], layout: str) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    assert only(tmp_path, **dict(zip(names, degrees, strict=True))).pools.decode[1] == layout


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "tp8+ep8"),
        ({"clients": "128"}, "dp8+ep8"),
        ({"clients": "64", "isl": "8192"}, "dp8+ep8"),
        ({"clients": "64", "isl": "8192", "model_path": "openai/gpt-oss-120b"}, "tp8+ep8"),
        ({"tp_size": "1", "moe_tp_size": "1", "model_path": "openai/gpt-oss-120b"}, "tp1"),
        ({"day": "2025-11-03"}, "tp8"),
        ({"backend": "sglang"}, "tp8"),
    ],
)
def test_until_layouts_are_recorded_the_script_of_the_day_has_them(
    tmp_path: Path, changes: dict[str, str], layout: str
) -> None:
    asked = {"clients": "16", "day": "2025-11-02", "moe_tp_size": "8", "moe_ep_size": "1"} | changes
    source = f"source_file=a.csv; silicon_concurrency={asked.pop('clients')}; measured={asked.pop('day')}"
    assert only(tmp_path, silicon_data_source=source, **asked).pools.decode[1] == layout


def test_aiconfigurators_own_runner_multiplies_degrees_of_its_own(tmp_path: Path) -> None:
    own = {"silicon_data_source": "silicon_concurrency=16", "tp_size": "4", "moe_tp_size": "2", "moe_ep_size": "2"}
    row = only(tmp_path, **own)
    assert (row.inference_max, row.pools.decode[1]) == (False, "tp4+ep2")


def test_the_run_that_added_guesses_made_them(tmp_path: Path) -> None:
    source = {"silicon_data_source": "silicon_concurrency=16; measured=2026-01-14T00:00:00Z"}
    assert only(tmp_path, **source).pools.draft_tokens == 3
    apart = {"tp_size": "1", "attention_dp_size": "8"}
    assert only(tmp_path, **source, **apart).pools.draft_tokens == 1


def test_two_pools_are_looked_up_in_what_was_published(tmp_path: Path) -> None:
    rows, skipped = read(tmp_path, DISAGGREGATED)
    assert not skipped
    assert rows[0].mode == "disaggregated"
    assert rows[0].pools.prefill == (1, "tp8+ep8")
    assert rows[0].pools.decode == (9, "tp8+ep8")  # eight clients for each of nine workers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"silicon_data_source": "silicon_concurrency=73; measured=2026-02-14"}, "no published deployment"),
        ({"silicon_data_source": "silicon_concurrency=72; measured=2025-02-14"}, "no published deployment"),
        ({"silicon_data_source": "dynamo_version=0.8.0"}, "number of clients is not recorded"),
        ({"isl": "8192", "silicon_data_source": "silicon_concurrency=28; measured=2026-02-14"}, "both ways"),
        ({"decode_num_workers": "3"}, "no published deployment"),
        ({"model_path": "zhipuai/GLM-5"}, "no tables of sparse attention"),
        ({"model_path": "meta-llama/Llama-3.1-70B"}, "dense"),
        ({"silicon_ttft_ms": "nan"}, "is no time"),
        ({"decode_pp_size": "2"}, "pipeline parallelism"),
        ({"precision": "bf16"}, "no profile covers this precision"),
        ({"model_path": "openai/gpt-oss-120b"}, "no published deployment is of this model"),
        ({"mode": "agg", "tp_size": "8" * 300, "silicon_data_source": OLD}, "tp_size is no whole number"),
    ],
)
def test_what_a_row_lacks_is_said(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    assert said in lacking(tmp_path, DISAGGREGATED | changes)


def test_copies_of_a_row_are_in_the_same_half(tmp_path: Path) -> None:
    other = AGGREGATED | {"id": "two", "model_path": "deepseek-ai/DeepSeek-R1"}
    rows, _ = read(tmp_path, AGGREGATED, other)
    assert rows[0].fitted == rows[1].fitted
    assert {half(str(ms), "1") for ms in range(20)} == {True, False}


@pytest.mark.parametrize(
    "copies",
    [
        [("455.1556074758992", "11.369859064662188"), ("455.15560747589916", "11.369859064662188")],
        [("12222.913625075673", "20.0"), ("12222.913625075671", "20.0")],
        *([(f"{ms}", "20.0"), (f"{ms}.000001", "20.0")] for ms in range(1000, 1020)),
    ],
)
def test_copies_may_differ_in_the_last_digits(tmp_path: Path, copies: list[tuple[str, str]]) -> None:
    """As rows of InferenceMAX do in aiconfigurator's file. A row that was fitted on has no copy that is reported on."""
    written = [AGGREGATED | {"silicon_ttft_ms": ttft, "silicon_tpot_ms": tpot} for ttft, tpot in copies]
    rows, _ = read(tmp_path, *written)
    assert [row.fitted for row in rows] == [any(half(*copy) for copy in copies)] * 2


@pytest.mark.parametrize("name", ["silicon_ttft_ms", "silicon_tpot_ms"])
def test_a_file_without_a_column_of_latencies(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"rows.csv: line 1: column {name} is missing"):
        read(tmp_path, {key: text for key, text in AGGREGATED.items() if key != name})


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"other.csv: line 1: column silicon_ttft_ms is missing"):
        read_rows(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attention_dp_size": "nan"}, "agg: attention_dp_size is no whole number from 1 to 64"),
        ({"attention_dp_size": "9" * 5000}, "agg: attention_dp_size is no whole number from 1 to 64"),
        ({"attention_dp_size": "-1"}, "agg: attention_dp_size is no whole number from 1 to 64"),
        ({"osl": "1"}, "agg: osl is no whole number from 2 to 1048576"),
        ({"silicon_data_source": "silicon_concurrency=" + "9" * 5000}, "agg: silicon_concurrency is no whole number"),
        ({"silicon_data_source": "silicon_concurrency=999999999"}, "agg: silicon_concurrency is no whole number"),
        (
            {"silicon_data_source": "", "batch_size": "8192", "tp_size": "1"},
            "agg, deepseek-ai/DeepSeek-V3: more than 8192 clients",
        ),
        ({"system": "9" * 5000}, "agg: system is no name of at most 64 letters and digits"),
        ({"system": "\U0001d54f" * 64}, "agg: system is no name of at most 64 letters and digits"),
        ({"backend": "../" * 20}, "agg: backend is no name of at most 64 letters and digits"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_row_of_what_nobody_measures_is_counted_as_lacking(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    assert lacking(tmp_path, AGGREGATED | changes).startswith(why)


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,silicon_ttft_ms,silicon_tpot_ms\none,1,1\n", encoding="utf-8-sig")
    assert read_rows(path)[1] == {": no profile covers this model": ["one"]}
