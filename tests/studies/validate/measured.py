"""Measured rows for tests, and the CSV that they stand in."""

from __future__ import annotations

import csv
from pathlib import Path

from pdplugins.studies.validate.rows import Row
from pdplugins.studies.validate.silicon import Coefficients, Felt

ROW = Row("r", "llama-3.1-8b", "bf16", "h100", "trtllm", 1, 1024, 65, 1, 0.1, 0.01)
TRUTH = Coefficients(prefill=1.1, decode=0.95, step_ms=0.6)
SUBSET = Path(__file__).parent / "silicon_subset.csv"
"""Every eighth undoubted row of the half that published figures are reported on (aiconfigurator, Apache-2.0)."""


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
    """Write `lines` as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    return path
