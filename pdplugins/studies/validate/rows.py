"""Reads measured rows of aiconfigurator's ``silicon`` CSV: dense models, with both phases on the same GPUs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from pdplugins.studies.validate.table import table

MODELS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
}
"""Dense models of the file, and their names in the validation profiles."""
MIXTURES = re.compile(r"DeepSeek|gpt-oss|MiniMax|Kimi|GLM-5|A22B|A17B")
"""Mixtures of experts of the file, whose step times depend on which experts a batch needs."""
PRECISIONS = {"": "bf16", "fp8": "fp8"}
MOST_TOKENS = 1 << 20
MOST_CLIENTS = 1 << 12
MOST_MS = 1e9
CROWD = 64
"""Clients from which on `Row.crowded` is true."""

Skipped = dict[str, list[str]]
"""Ids of the rows that cannot be simulated, by the reason."""


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

    @property
    def crowded(self) -> bool:
        """Whether so many clients ask that work outside the GPUs may count."""
        return self.clients >= CROWD


class UncoveredError(Exception):
    """A row that cannot be simulated; the message says why."""


def read_rows(path: Path) -> tuple[list[Row], Skipped]:
    """Return the rows of `path` that can be read, and the others by reason. Raises ConfigError for what is no CSV."""
    rows: list[Row] = []
    skipped: Skipped = defaultdict(list)
    for number, raw in table(path):
        try:
            rows.append(_row(raw))
        except UncoveredError as why:
            skipped[str(why)].append(raw.get("id") or f"line {number}")
    return rows, dict(skipped)


def _row(raw: dict[str, str]) -> Row:
    source = raw.get("silicon_data_source", "")
    concurrency = re.search(r"silicon_concurrency=(\d+)", source)
    said = "silicon_concurrency" if concurrency else "batch_size"
    row = Row(
        id=raw.get("id", ""),
        model=_model(raw),
        precision=_precision(raw),
        system=raw.get("system", "").removesuffix("_sxm"),
        engine=raw.get("backend", ""),
        tp=_whole(raw, "tp_size", 1024),
        isl_tokens=_whole(raw, "isl", MOST_TOKENS),
        osl_tokens=_whole(raw, "osl", MOST_TOKENS, 2),  # one token has no TPOT
        clients=_whole({**raw, said: concurrency[1]} if concurrency else raw, said, MOST_CLIENTS),
        ttft_s=_ms(raw, "silicon_ttft_ms") / 1e3,
        tpot_s=_ms(raw, "silicon_tpot_ms") / 1e3,
    )
    doubt = "no concurrency recorded" if concurrency is None else _doubt(row, raw.get("backend_version", ""))
    return replace(row, doubt=doubt)


def _model(raw: dict[str, str]) -> str:
    """Return the model of a row, which must be dense and run on one set of GPUs."""
    path, mode = raw.get("model_path", ""), raw.get("mode", "")
    if MIXTURES.search(path):
        raise UncoveredError(f"{path}, {mode}: a mixture of experts, see `pdplugins validate measured`")
    if path not in MODELS:
        raise UncoveredError(f"{path}: no profile covers this model")
    if mode != "agg":
        raise UncoveredError(f"{MODELS[path]}, {mode}: only engines that serve both phases have a profile")
    if raw.get("pp_size", "1") not in ("", "1"):
        raise UncoveredError(f"{MODELS[path]}: pipeline parallelism, and no profile covers it")
    return MODELS[path]


def _precision(raw: dict[str, str]) -> str:
    if (name := raw.get("precision", "")) not in PRECISIONS:
        raise UncoveredError(f"{MODELS[raw['model_path']]}, {name}: no profile covers this precision")
    return PRECISIONS[name]


def _whole(raw: dict[str, str], name: str, most: int, least: int = 1) -> int:
    text = raw.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise UncoveredError(f"{name} is no whole number from {least} to {most}")
    return int(text)


def _ms(raw: dict[str, str], name: str) -> float:
    try:
        value = float(raw.get(name, ""))
    except ValueError:
        value = 0.0
    if not isfinite(value) or not 1e-6 <= value <= MOST_MS:
        raise UncoveredError(f"{name} is no time from 1e-06 to {MOST_MS:g} ms")
    return value


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
