"""Measured rows: simulated, fitted and reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.studies.validate import report, silicon
from pdplugins.studies.validate.commands import validate
from pdplugins.studies.validate.papers import SILICON
from pdplugins.studies.validate.rows import read_rows
from pdplugins.studies.validate.silicon import Felt, Setup
from pdplugins.studies.validate.sources import SOURCES, Client
from tests.studies.validate.measured import ROW, SUBSET, TRUTH, line, write

ONE_LESS = frozenset([ROW.source])


def test_a_client_alone_feels_the_profile_and_nothing_else() -> None:
    perf = silicon.model_of(ROW.source, TRUTH)
    felt = silicon.simulate(ROW, Setup(TRUTH))
    assert felt.ttft_s == pytest.approx(perf.prefill_s(1024, 1), rel=1e-6)
    steps = [perf.decode_step_s(1, 1024 + n, 1) for n in range(64)]
    assert felt.tpot_s == pytest.approx(sum(steps) / 64, rel=1e-4)


def test_a_missing_place_makes_one_client_wait_for_an_answer() -> None:
    row = replace(ROW, clients=4, osl_tokens=128)
    free, waits = silicon.simulate(row, Setup()), silicon.simulate(row, Setup(one_less=ONE_LESS))
    assert waits.ttft_s > free.ttft_s + 0.2 * 127 * free.tpot_s


def test_a_frontend_adds_its_time_to_every_first_token() -> None:
    felt = silicon.simulate(ROW, Setup(TRUTH, frontend_s=0.05))
    assert felt.ttft_s == pytest.approx(silicon.simulate(ROW, Setup(TRUTH)).ttft_s + 0.05, abs=1e-9)


def test_an_engine_that_reserves_answers_lets_in_what_fits_whole() -> None:
    row = replace(ROW, clients=40, isl_tokens=12_000, osl_tokens=9000)
    assert silicon.kv_tokens_of(row) < 40 * 12_000  # most of the clients wait for an answer of another
    assert silicon.simulate(row, Setup()).ttft_s > 30


def test_the_client_and_seed_decide_the_lengths() -> None:
    row, client = replace(ROW, clients=5), Client(4, 0.8, "")
    drawn = [(a.isl_tokens, a.osl_tokens, len(a.rounds)) for a in silicon.clients(row, client, seed=1)]
    assert all(819 <= isl <= 1024 and 52 <= osl <= 65 and later == 3 for isl, osl, later in drawn)
    assert drawn == [(a.isl_tokens, a.osl_tokens, len(a.rounds)) for a in silicon.clients(row, client, seed=1)]
    assert drawn != [(a.isl_tokens, a.osl_tokens, len(a.rounds)) for a in silicon.clients(row, client, seed=2)]


def test_fp8_takes_no_longer_than_bf16_on_the_same_engine_and_gpu() -> None:
    fp8, bf16 = (silicon.profile_of(f"h100/qwen3-32b{precision}-vllm") for precision in ("-fp8", ""))
    for tp, table in fp8.dense.items():
        assert all(short <= long for short, long in zip(table.raw_ms, bf16.dense[tp].raw_ms, strict=True)), tp


def test_every_source_has_a_profile_and_says_who_published_its_protocol() -> None:
    for name, source in SOURCES.items():
        assert silicon.profile_of(name).dense, name
        assert "InferenceMAX" in source.client.reason or "aiconfigurator" in source.client.reason
        assert len(source.engine.reason) > 40


def test_the_tokens_of_a_step_follow_from_who_set_the_engine_up() -> None:
    row = replace(ROW, isl_tokens=2000, clients=30)
    tokens = {name: source.engine.step_tokens(row) for name, source in SOURCES.items()}
    assert tokens["h200/llama-3.1-70b-fp8-vllm"] == tokens["h100/qwen3-32b-sglang"] == 8192
    assert tokens["h100/llama-3.1-8b-trtllm"] == tokens["h100/qwen3-32b-vllm"] == 3530
    assert tokens["h200/llama-3.1-8b-fp8-sglang"] == 3500


@pytest.mark.moderate
def test_measured_rows_are_predicted_within_the_bars() -> None:
    """Rows on which nothing was fitted, with the coefficients that the published report found on the others."""
    rows, _ = report.split(*read_rows(SUBSET))
    pairs = [(row, silicon.simulate(row, Setup(SILICON, ONE_LESS))) for row in rows]
    found = report.summary(pairs)
    assert found["ttft"]["median_abs_error"] <= 0.20
    assert found["tpot"]["median_abs_error"] <= 0.10
    raw = report.summary([(row, silicon.simulate(row, Setup(one_less=ONE_LESS))) for row in rows])
    assert raw["ttft"]["median_abs_error"] > found["ttft"]["median_abs_error"]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Rows whose truth is the simulator itself, at coefficients that are not the defaults."""
    lines = []
    shapes = [(isl, osl, tp, clients) for isl in (512, 3000) for osl in (16, 48) for tp in (1, 4) for clients in (2, 6)]
    for number, (isl, osl, tp, clients) in enumerate(shapes):
        row = replace(ROW, id=f"r{number}", isl_tokens=isl, osl_tokens=osl, tp=tp, clients=clients)
        lines.append(line(row, silicon.simulate(row, Setup(TRUTH))))
    lines.append(line(replace(ROW, id="moe"), Felt(1, 1), model_path="deepseek-ai/DeepSeek-V3"))
    doubtful = replace(ROW, id="unknown", clients=2)
    lines.append(line(doubtful, Felt(9.0, 0.9), silicon_data_source="somewhere; dynamo_version=0.8.0"))
    return write(tmp_path / "rows.csv", lines)


def ask(tmp_path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Return what the command prints and what it writes."""
    out = tmp_path / "out.json"
    done = CliRunner().invoke(validate, ["silicon", *options, "--json", str(out)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(out.read_text())
    return done.output, found


@pytest.mark.moderate
def test_the_command_finds_the_coefficients_that_made_the_rows(measured: Path, tmp_path: Path) -> None:
    said, found = ask(tmp_path, str(measured))
    assert found["rows"] == 9
    assert found["clean"]["rows"] + sum(found["doubts"].values()) == 9
    assert found["coefficients"] == pytest.approx({"prefill": 1.1, "decode": 0.95, "step_ms": 0.6}, abs=0.05)
    assert found["clean"]["ttft"]["median_abs_error"] < 0.03
    assert found["clean"]["tpot"]["median_abs_error"] < 0.02
    assert found["by_model"]["llama-3.1-8b"]["rows"] == found["by_engine"]["trtllm"]["rows"] == 9
    assert found["seed"] == 0
    assert [len(ids) for ids in found["skipped"].values()] == [1]
    assert "median absolute error" in said


@pytest.mark.moderate
def test_a_frontend_that_made_the_rows_is_found(tmp_path: Path) -> None:
    shapes = [(isl, clients) for isl in (512, 1024, 2048) for clients in (4, 12, 24, 40)]
    bare = [replace(ROW, id=f"r{n}", isl_tokens=isl, osl_tokens=24, clients=c) for n, (isl, c) in enumerate(shapes)]
    lines = [line(row, silicon.simulate(row, Setup(frontend_s=0.03))) for row in bare]
    rows, _ = read_rows(write(tmp_path / "rows.csv", lines))
    found = report.frontend(rows, Setup(), seed=0)
    assert found["request_s"] == 0.03
    assert found["with"]["ttft"]["median_abs_error"] < 1e-6 < found["without"]["ttft"]["median_abs_error"]


@pytest.mark.moderate
def test_a_model_is_left_out_of_the_fit_that_is_judged_on_it(measured: Path) -> None:
    """Rows of another model that are three times as slow spoil the fit of this one, and not their own."""
    rows, _ = report.split(*read_rows(measured))
    other = [replace(row, model="qwen3-32b", precision="fp8", ttft_s=3.0, tpot_s=0.05) for row in rows[:6]]
    left_out = report.leave_one_out([*rows, *other], Setup(TRUTH), seed=0)
    assert left_out["qwen3-32b"]["coefficients"] == pytest.approx(
        {"prefill": 1.1, "decode": 0.95, "step_ms": 0.6}, abs=0.02
    )
    assert left_out["llama-3.1-8b"]["coefficients"]["prefill"] > 1.3
    assert left_out["llama-3.1-8b"]["clean"]["rows"] == 16


@pytest.mark.moderate
def test_rows_never_used_are_those_of_the_other_file_alone(measured: Path, tmp_path: Path) -> None:
    """A row that stands in both files, under whatever name, is not new."""
    rows, _ = report.split(*read_rows(measured))
    new = [replace(ROW, id=f"n{n}", isl_tokens=900 + n, clients=3, osl_tokens=20) for n in range(3)]
    lines = [line(row, Felt(row.ttft_s, row.tpot_s)) for row in (*rows[:4], replace(rows[5], id="renamed"))]
    lines += [line(row, silicon.simulate(row, Setup(TRUTH))) for row in new]
    said, found = ask(tmp_path, str(measured), "--unseen", str(write(tmp_path / "more.csv", lines)))
    assert [point["id"] for point in found["unseen"]["points"]] == ["n0", "n1", "n2"]
    assert found["unseen"]["ttft"]["median_abs_error"] < 0.05
    assert "rows never used" in said


@pytest.mark.moderate
def test_a_file_of_one_model_is_reported_without_leaving_it_out(measured: Path, tmp_path: Path) -> None:
    said, found = ask(tmp_path, str(measured), "--leave-one-out")
    assert found["leave_one_out"] == {}
    assert found["rows"] > 0
    assert "all rows of the report half" in said


def test_rows_without_ids_are_not_taken_for_one_another() -> None:
    seen, new = replace(ROW, id="", ttft_s=1.0), replace(ROW, id="", ttft_s=2.0)
    assert report.unseen([seen, new], [seen], Setup(TRUTH), seed=0)["rows"] == 1


def test_a_file_of_which_no_row_can_be_simulated_is_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.csv", [line(replace(ROW, tp=3), Felt(1, 1))])
    done = CliRunner().invoke(validate, ["silicon", str(rows)])
    assert isinstance(done.exception, ConfigError)
    assert "no row to fit" in str(done.exception)
