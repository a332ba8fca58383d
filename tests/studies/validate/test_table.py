"""Reading aiconfigurator's CSV: what is none is an error in one line, and nothing is read without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.studies.validate import commands, table


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"silicon_ttft_ms,silicon_tpot_ms\n" + b"x" * 5000, "not a CSV file: a line of more than 1000 characters"),
        (b",".join([b"id"] * 2000), "not a CSV file: a line of more than 1000 characters"),
        (b"a,b,c,d\n", "more than 3 columns"),
        (b"\xff\xfe", "not a CSV file: 'utf-8' codec can't decode"),
        (b"", "line 1: column silicon_ttft_ms is missing; give aiconfigurator's silicon CSV"),
        (b"<html>\nno such page\n", "line 1: column silicon_ttft_ms is missing"),
        (b"id,silicon_ttft_ms\none,1\n", "line 1: column silicon_tpot_ms is missing"),
    ],
    ids=["line", "header", "columns", "bytes", "empty", "page", "half"],
)
def test_what_is_no_csv_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, why: str) -> None:
    monkeypatch.setattr(table, "LONGEST_LINE", 1000)
    monkeypatch.setattr(table, "MOST_COLUMNS", 3)
    path = tmp_path / "rows.csv"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        list(table.table(path))
    assert str(error.value).startswith(f"rows {path}: {why}")
    assert "\n" not in str(error.value)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Else the last one counts, which may be the times of another run."""
    path = tmp_path / "rows.csv"
    path.write_text("id,silicon_ttft_ms,silicon_tpot_ms,silicon_ttft_ms\none,100,10,900\n")
    with pytest.raises(ConfigError, match=f"rows {path}: line 1: column 'silicon_ttft_ms' stands twice; give "):
        list(table.table(path))


def test_rows_have_the_numbers_of_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,silicon_ttft_ms,silicon_tpot_ms\n\n"one\nmore",1,2\n\ntwo,1,2\n')
    assert [number for number, _ in table.table(path)] == [4, 6]


@pytest.mark.parametrize(
    ("path", "why"),
    [("/dev/zero", "not a CSV file: a line of more"), ("/", "Is a directory"), ("x" * 5000, "File name too long")],
    ids=lambda value: value[:20],
)
def test_what_is_no_file_is_refused(path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        list(table.table(Path(path)))
    assert len(str(error.value)) < 500


@pytest.mark.timeout(30)
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(ConfigError, match="a pipe; write it to a file first"):
        list(table.table(tmp_path / "rows.csv"))


@pytest.mark.parametrize("command", ["silicon", "measured"])
def test_a_cell_does_not_reach_the_terminal_as_it_is(tmp_path: Path, command: str) -> None:
    path = tmp_path / "rows.csv"
    name = "\x1b[31m" + "x" * 100_000
    path.write_text(f'id,model_path,silicon_ttft_ms,silicon_tpot_ms\n"a\nb",{name},1,1\n')
    done = CliRunner().invoke(commands.validate, [command, str(path)])
    assert done.stderr.startswith("rows.csv: skipped 1 rows: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 600
    assert "\x1b" not in done.stderr
