"""Measured rows: read, simulated, fitted and reported."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.studies.validate import report, silicon
from pdplugins.studies.validate.commands import validate
from pdplugins.studies.validate.rows import Row, read_rows
from pdplugins.studies.validate.silicon import Coefficients, Felt
from pdplugins.studies.validate.sources import ENGINES, PROTOCOLS, Protocol

ALONE = Protocol(3, 1.0, 1.0, "mean")
ROW = Row("r", "llama-3.1-8b", "bf16", "h100", "trtllm", 1, 1024, 65, 1, 0.1, 0.01)
TRUTH = Coefficients(prefill=1.1, decode=0.95, step_ms=0.6)


def line(row: Row, felt: Felt, **other: str) -> dict[str, str]:
    """Return a row as the CSV has it."""
    said = {
        "id": row.id,
        "silicon_data_source": f"somewhere; silicon_concurrency={row.clients}",
        "backend": row.engine,
        "backend_version": "1.0.0rc3",
        "model_path": "meta-llama/Llama-3.1-8B-Instruct",
        "system": f"{row.system}_sxm",
        "precision": "",
        "mode": "agg",
        "isl": str(row.isl_tokens),
        "osl": str(row.osl_tokens),
        "batch_size": str(row.clients),
        "tp_size": str(row.tp),
        "silicon_ttft_ms": str(1e3 * felt.ttft_s),
        "silicon_tpot_ms": str(1e3 * felt.tpot_s),
    }
    return said | other


def write(path: Path, lines: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    return path


def test_a_client_alone_feels_the_profile_and_nothing_else() -> None:
    perf = silicon.model_of(ROW.source, TRUTH)
    felt = silicon.simulate(ROW, ALONE, TRUTH)
    assert felt.ttft_s == pytest.approx(perf.prefill_s(1024, 1), rel=1e-6)
    steps = [perf.decode_step_s(1, 1024 + n, 1) for n in range(64)]
    assert felt.tpot_s == pytest.approx(sum(steps) / 64, rel=1e-4)


def test_a_missing_place_makes_one_client_wait_for_an_answer() -> None:
    row = replace(ROW, clients=4, osl_tokens=128)
    free = silicon.simulate(row, replace(ALONE, requests=10), Coefficients())
    waits = silicon.simulate(row, replace(ALONE, requests=10, slots=-1), Coefficients())
    assert waits.ttft_s > free.ttft_s + 0.2 * 127 * free.tpot_s


def test_an_engine_that_reserves_answers_lets_in_what_fits_whole() -> None:
    row = replace(ROW, clients=40, isl_tokens=12_000, osl_tokens=9000)
    room = silicon.model_of(row.source, Coefficients()).kv_capacity_tokens(1)
    assert room < 40 * 12_000  # most of the clients wait for an answer of another
    assert silicon.simulate(row, replace(ALONE, requests=1), Coefficients()).ttft_s > 30


def test_the_protocol_and_seed_decide_the_lengths() -> None:
    row = replace(ROW, clients=5)
    spread = Protocol(4, 0.8, 1.0, "median")
    drawn = [(a.isl_tokens, a.osl_tokens, len(a.rounds)) for a in silicon.clients(row, spread, seed=1)]
    assert all(819 <= isl <= 1024 and 52 <= osl <= 65 and later == 3 for isl, osl, later in drawn)
    assert drawn == [(a.isl_tokens, a.osl_tokens, len(a.rounds)) for a in silicon.clients(row, spread, seed=1)]
    assert drawn != [(a.isl_tokens, a.osl_tokens, len(a.rounds)) for a in silicon.clients(row, spread, seed=2)]


def test_every_source_has_a_protocol_with_its_reason_and_a_profile() -> None:
    for source, protocol in PROTOCOLS.items():
        assert len(protocol.reason) > 40, source
        assert silicon.profile_of(source).dense, source
        assert source.rsplit("-", 1)[1] in ENGINES


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Rows whose truth is the simulator itself, at coefficients that are not the defaults."""
    lines = []
    shapes = [(isl, osl, tp, clients) for isl in (512, 3000) for osl in (16, 48) for tp in (1, 4) for clients in (2, 6)]
    for number, (isl, osl, tp, clients) in enumerate(shapes):
        row = replace(ROW, id=f"r{number}", isl_tokens=isl, osl_tokens=osl, tp=tp, clients=clients)
        lines.append(line(row, silicon.simulate(row, PROTOCOLS[row.source], TRUTH)))
    lines.append(line(replace(ROW, id="moe"), Felt(1, 1), model_path="deepseek-ai/DeepSeek-V3"))
    doubtful = replace(ROW, id="unknown", clients=2)
    lines.append(line(doubtful, Felt(9.0, 0.9), silicon_data_source="somewhere; dynamo_version=0.8.0"))
    return write(tmp_path / "rows.csv", lines)


def test_the_command_finds_the_coefficients_that_made_the_rows(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = CliRunner().invoke(validate, ["silicon", str(measured), "--json", str(out)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["rows"] == 9
    assert found["clean"]["rows"] + sum(found["doubts"].values()) == 9
    assert found["coefficients"] == pytest.approx({"prefill": 1.1, "decode": 0.95, "step_ms": 0.6}, abs=0.05)
    assert found["clean"]["ttft"]["median_abs_error"] < 0.03
    assert found["clean"]["tpot"]["median_abs_error"] < 0.02
    assert found["by_model"]["llama-3.1-8b"]["rows"] == found["by_engine"]["trtllm"]["rows"] == 9
    assert found["seed"] == 0
    assert "silicon" in done.output or "median absolute error" in done.output


def test_rows_without_a_profile_of_their_tp_are_skipped_counted_and_named(tmp_path: Path) -> None:
    """No row of an odd file may end in a traceback."""
    good = [replace(ROW, id=f"r{number}", tp=tp, osl_tokens=16) for number, tp in enumerate((1, 2, 4, 8))]
    lines = [line(row, silicon.simulate(row, PROTOCOLS[row.source], TRUTH)) for row in good]
    lines += [line(replace(ROW, id=f"odd{number}", tp=3), Felt(1, 1)) for number in range(7)]
    lines.append(line(replace(ROW, id="unknown", system="b200"), Felt(1, 1)))
    out = tmp_path / "out.json"
    done = CliRunner().invoke(validate, ["silicon", str(write(tmp_path / "rows.csv", lines)), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "skipped 7 rows: h100/llama-3.1-8b-trtllm: its profile has no TP 3; it has 1, 2, 4, 8 (odd0" in done.stderr
    assert "odd4 and 2 more)" in done.stderr
    found = json.loads(out.read_text())
    assert found["rows"] == 2
    assert [len(ids) for ids in found["skipped"].values()] == [7, 1]


def test_a_file_of_which_no_row_can_be_simulated_is_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", [line(replace(ROW, tp=3), Felt(1, 1))])
    done = CliRunner().invoke(validate, ["silicon", str(rows)])
    assert isinstance(done.exception, ConfigError)
    assert "no row to fit" in str(done.exception)


def test_rows_of_other_models_are_left_out_and_doubts_are_named(measured: Path) -> None:
    rows = {row.id: row for row in read_rows(measured)}
    assert "moe" not in rows
    assert rows["unknown"].doubt == "no concurrency recorded"
    assert rows["r0"].doubt is None


def test_the_protocol_that_made_the_rows_is_chosen() -> None:
    rows = [replace(ROW, id=f"c{n}", clients=n, osl_tokens=64) for n in (3, 5)]
    truth = Protocol(5, 1.0, 1.0, "mean", -1)
    felt = [silicon.simulate(row, truth, Coefficients()) for row in rows]
    rows = [replace(row, ttft_s=f.ttft_s, tpot_s=f.tpot_s) for row, f in zip(rows, felt, strict=True)]
    others = [replace(truth, slots=0), truth, replace(truth, requests=10)]
    assert report.choose(rows, others, Coefficients()) == truth


def test_a_bad_line_is_named(measured: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text(measured.read_text().replace("r3,", "r3,", 1).replace(",512,16,", ",many,16,", 1))
    with pytest.raises(ConfigError, match=r"broken\.csv, line 2: .*many"):
        read_rows(broken)


def test_a_missing_file_says_where_the_data_is_published(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="aiconfigurator"):
        read_rows(tmp_path / "absent.csv")
    empty = tmp_path / "empty.csv"
    empty.write_text("id,mode\n")
    with pytest.raises(ConfigError, match="no row of a dense model"):
        read_rows(empty)
