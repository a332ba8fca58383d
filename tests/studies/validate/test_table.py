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
        (b"id\n" + b"x" * 5000, "not a CSV file: a line of more than 1000 characters"),
        (b",".join([b"id"] * 2000), "not a CSV file: a line of more than 1000 characters"),
        (b"a,b,c,d\n", "more than 3 columns"),
        (b"\xff\xfe", "not a CSV file: 'utf-8' codec can't decode"),
    ],
    ids=["line", "header", "columns", "bytes"],
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
    path.write_text(f'id,model_path,silicon_ttft_ms\n"a\nb",{name},1\n')
    done = CliRunner().invoke(commands.validate, [command, str(path)])
    assert done.stderr.startswith("rows.csv: skipped 1 rows: ")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 600
    assert "\x1b" not in done.stderr
