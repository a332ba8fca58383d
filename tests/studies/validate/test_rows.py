"""Reading measured rows: what no profile covers is skipped with its reason, and no file ends in a traceback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.studies.validate import report
from pdplugins.studies.validate.commands import validate
from pdplugins.studies.validate.rows import CROWD, MODELS, read_rows
from pdplugins.studies.validate.silicon import Felt
from pdplugins.studies.validate.table import MEASURED
from tests.studies.validate.measured import ROW, SUBSET, line, write

GOOD = line(ROW, Felt(0.1, 0.01))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            {"model_path": "deepseek-ai/DeepSeek-R1"},
            "deepseek-ai/DeepSeek-R1, agg: a mixture of experts, see `pdplugins validate measured`",
        ),
        ({"model_path": "openai/gpt-oss-120b", "mode": "disagg"}, "openai/gpt-oss-120b, disagg: a mixture of experts"),
        ({"model_path": "google/gemma-4-31B"}, "google/gemma-4-31B: no profile covers this model"),
        ({"model_path": ""}, ": no profile covers this model"),
        ({"mode": "disagg"}, "llama-3.1-8b, disagg: only engines that serve both phases"),
        ({"pp_size": "2"}, "llama-3.1-8b: pipeline parallelism"),
        ({"precision": "fp4"}, "llama-3.1-8b, fp4: no profile covers this precision"),
        ({"system": "b200_sxm"}, "b200/llama-3.1-8b-trtllm: no profile covers this model, GPU and engine together"),
        ({"backend": "../../etc/passwd"}, "h100/llama-3.1-8b-../../etc/passwd: no profile"),
        ({"tp_size": "3"}, "h100/llama-3.1-8b-trtllm: its profile has no TP 3; it has 1, 2, 4, 8"),
        ({"isl": "1000000"}, "h100/llama-3.1-8b-trtllm: one request needs more KV cache than there is at TP 1"),
        ({"isl": "many"}, "isl is no whole number from 1 to 1048576"),
        ({"isl": "1e400"}, "isl is no whole number"),
        ({"isl": "²"}, "isl is no whole number"),
        ({"osl": "0"}, "osl is no whole number"),
        ({"osl": "1"}, "osl is no whole number from 2 to 1048576"),
        ({"osl": "-5"}, "osl is no whole number"),
        ({"tp_size": ""}, "tp_size is no whole number"),
        ({"silicon_data_source": "silicon_concurrency=99999999999999999999"}, "silicon_concurrency is no whole number"),
        ({"silicon_ttft_ms": "nan"}, "silicon_ttft_ms is no time"),
        ({"silicon_ttft_ms": "inf"}, "silicon_ttft_ms is no time"),
        ({"silicon_tpot_ms": "0"}, "silicon_tpot_ms is no time"),
        ({"silicon_tpot_ms": "-1"}, "silicon_tpot_ms is no time"),
        ({"silicon_tpot_ms": "1e308"}, "silicon_tpot_ms is no time"),
    ],
)
def test_a_row_that_no_profile_covers_is_skipped_with_the_reason(
    other: dict[str, str], why: str, tmp_path: Path
) -> None:
    keys = dict.fromkeys(other, "")
    path = write(tmp_path / "rows.csv", [{**keys, **GOOD}, {**keys, **GOOD, "id": "odd", **other}])
    rows, skipped = report.split(*read_rows(path))
    assert len(rows) == 1
    assert [(reason.startswith(why), ids) for reason, ids in skipped.items()] == [(True, ["odd"])]


def test_rows_of_one_kind_are_counted_together(tmp_path: Path) -> None:
    lines = [GOOD, *({**GOOD, "id": f"m{n}", "model_path": "zhipuai/GLM-5"} for n in range(7))]
    done = CliRunner().invoke(validate, ["silicon", str(write(tmp_path / "rows.csv", lines))])
    assert "rows.csv: skipped 7 rows: zhipuai/GLM-5, agg: a mixture of experts" in done.stderr
    assert "(m0, m1, m2, m3, m4 and 2 more)" in done.stderr


def test_a_row_without_concurrency_is_in_doubt(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", [{**GOOD, "silicon_data_source": "dynamo_version=0.8.0", "batch_size": "7"}])
    ((row,), _) = read_rows(path)
    assert (row.clients, row.doubt) == (7, "no concurrency recorded")


def test_a_crowd_begins_at_its_number_of_clients() -> None:
    assert [replace(ROW, clients=clients).crowded for clients in (1, CROWD - 1, CROWD, 512)] == [0, 0, 1, 1]


def test_all_rows_of_the_subset_can_be_simulated() -> None:
    rows, skipped = report.split(*read_rows(SUBSET))
    assert (len(rows), skipped) == (24, {})
    assert not [row for row in rows if row.doubt]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = ["nan", "inf", "-inf", "1e999", "9" * 400, "0", "-1", "1", "4", "1024"]
WORDS = ["agg", "disagg", "fp8", "h200_sxm", "vllm", "silicon_concurrency=3", "silicon_concurrency=0"]
VALUES = TEXT | st.sampled_from([*NUMBERS, *WORDS, *MODELS, "deepseek-ai/DeepSeek-R1"])
CHANGES = st.dictionaries(st.sampled_from(sorted(GOOD)) | TEXT, VALUES, max_size=6)


@pytest.mark.moderate
@given(st.lists(CHANGES, max_size=5), st.sets(st.sampled_from(sorted(GOOD.keys() - set(MEASURED))), max_size=4))
@settings(max_examples=150)
def test_any_row_is_read_or_skipped(changes: list[dict[str, str]], missing: set[str]) -> None:
    names = {name for change in changes for name in change} | set(GOOD)
    lines = [{name: change.get(name, GOOD.get(name, "")) for name in names - missing} for change in ({}, *changes)]
    with TemporaryDirectory() as folder:
        rows, skipped = report.split(*read_rows(write(Path(folder) / "rows.csv", lines)))
    assert len(rows) + sum(map(len, skipped.values())) == len(lines)
    assert all(row.clients <= 4096 and row.ttft_s > 0 for row in rows)


@pytest.mark.moderate
@given(st.binary(max_size=300) | TEXT.map(str.encode) | st.just(b'id,model_path\n"' + b"x" * 200_000))
@settings(max_examples=150)
def test_any_file_is_read_or_refused_in_one_line(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(content)
        done = CliRunner().invoke(validate, ["silicon", str(path)])
    assert isinstance(done.exception, ConfigError)
    assert "\n" not in str(done.exception)


def test_a_folder_and_a_missing_file_say_where_the_data_is_published(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(ConfigError, match="aiconfigurator"):
            read_rows(path)
