"""Reads measured rows of aiconfigurator's ``silicon`` CSV: dense models, with both phases on the same GPUs."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from pdplugins.errors import ConfigError

MODELS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
"""Dense models of the file, and their names in the validation profiles."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured point: a number of clients, each with one request at a time, and the latencies that they saw."""

    id: str
    model: str
    precision: str
    """``bf16`` or ``fp8``."""
    system: str
    engine: str
    tp: int
    isl_tokens: int
    osl_tokens: int
    clients: int
    ttft_s: float
    tpot_s: float
    doubt: str | None = None
    """Why the row may be wrong; None for a row without doubt."""

    @property
    def source(self) -> str:
        """Model, precision, system and engine, which were measured together. This is also the name of the profile."""
        precision = "-fp8" if self.precision == "fp8" else ""
        return f"{self.system}/{self.model}{precision}-{self.engine}"


def read_rows(path: Path) -> list[Row]:
    """Read the rows of `path` that can be simulated. Raises ConfigError with the line that is wrong."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [_row(raw, path, reader.line_num) for raw in reader if _usable(raw)]
    except OSError as error:
        why = f"{error.strerror}; the file is published with aiconfigurator (github.com/ai-dynamo/aiconfigurator)"
        raise ConfigError(f"rows {path}: {why}") from None
    if not rows:
        raise ConfigError(f"rows {path}: no row of a dense model on one set of GPUs (mode agg); give silicon_half.csv")
    return rows


def _usable(raw: dict[str, str]) -> bool:
    return raw.get("model_path") in MODELS and raw.get("mode") == "agg"


def _row(raw: dict[str, str], path: Path, line: int) -> Row:
    try:
        source = raw["silicon_data_source"]
        concurrency = re.search(r"silicon_concurrency=(\d+)", source)
        row = Row(
            id=raw["id"],
            model=MODELS[raw["model_path"]],
            precision="fp8" if raw["precision"] == "fp8" else "bf16",
            system=raw["system"].removesuffix("_sxm"),
            engine=raw["backend"],
            tp=int(raw["tp_size"]),
            isl_tokens=int(raw["isl"]),
            osl_tokens=int(raw["osl"]),
            clients=int(concurrency[1] if concurrency else raw["batch_size"]),
            ttft_s=float(raw["silicon_ttft_ms"]) / 1e3,
            tpot_s=float(raw["silicon_tpot_ms"]) / 1e3,
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"rows {path}, line {line}: {error}; want aiconfigurator's silicon columns") from None
    doubt = "no concurrency recorded" if concurrency is None else _doubt(row, raw["backend_version"])
    return row if doubt is None else Row(**{name: getattr(row, name) for name in _BUT_DOUBT}, doubt=doubt)


_BUT_DOUBT = tuple(name for name in Row.__slots__ if name != "doubt")


def _doubt(row: Row, version: str) -> str | None:
    """Return why a row is in doubt: it contradicts itself, similar rows, or the limits of the GPU."""
    match row.source, version:
        case "h200/llama-3.1-8b-fp8-vllm", _:
            return "prompts cost almost nothing, as if most of them were cached"
        case "h200/llama-3.1-70b-fp8-trtllm", _ if (row.isl_tokens, row.osl_tokens) == (1024, 1024) and row.tp < 8:
            return "TTFT two to three times that of the same prompts with longer answers, at TP 1, 2 and 4 only"
        case _, "0.5.8.post1":
            return "the weights leave next to no room for a KV cache, whose size is not recorded"
    return None
