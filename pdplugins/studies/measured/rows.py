"""Reads measured rows of aiconfigurator's ``silicon`` CSV whose models are mixtures of experts, in one pool or in two.

A row names its engine, its layout and the number of its clients. What it does not name is looked up in what the
project that measured it published (`pdplugins.studies.measured.published`); where that leaves a choice, the row is
counted as lacking it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import date
from hashlib import sha256
from math import isfinite
from pathlib import Path

from pdplugins.studies.measured.published import LackingError, Pools, day_of, guesses_of, layout_of, pools_of
from pdplugins.studies.validate.table import table

MODELS = {
    "deepseek-ai/DeepSeek-V3": "deepseek-r1",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b-fp8",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
"""Mixtures of experts that aiconfigurator has kernel tables for. DeepSeek V3 and R1 are of one shape."""
LAYERS = {"deepseek-r1": 61, "qwen3-235b-a22b-fp8": 94, "gpt-oss-120b": 36}
"""By model: layers of its `config.json`."""
PRECISIONS = {"deepseek-r1": {"", "fp8"}, "qwen3-235b-a22b-fp8": {"", "fp8"}, "gpt-oss-120b": {"", "fp4"}}
"""By model: the precisions, as rows call them, that the kernel tables are of."""
MATRICES = {"deepseek-r1": 6, "qwen3-235b-a22b-fp8": 2, "gpt-oss-120b": 2}
"""By model: weight matrices of a layer outside its router and its routed experts, as engines fuse them.

Attention has two, QKV and output. DeepSeek's has four: down to both latents, up from each of them, and output; its
shared expert, or the MLP of its first three layers, has two more.
"""
WARMS_UP = date(2026, 1, 21)
"""From this day on InferenceMAX's client sends two requests for each client before it measures."""
DENSE = re.compile(r"Llama-3\.1|Qwen3-32B")
UNCOVERED = {
    "moonshotai/Kimi-K2.5": "no tables of attention with 64 latent heads, nor of INT4 experts of its size",
    "MiniMaxAI/MiniMax-M2.5": "no tables of experts of its size (hidden 3072, 256 experts)",
    "zhipuai/GLM-5": "no tables of sparse attention",
    "Qwen/Qwen3.5-397B-A17B": "no tables of linear attention",
}
"""Models that were measured and that no kernel table covers, with the reason."""
MOST_CLIENTS = 1 << 13
MOST_TOKENS = 1 << 20
MOST_MS = 1e7

Skipped = dict[str, list[str]]
"""Ids of the rows that cannot be simulated, by the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured point: clients with one request at a time each, and the mean latencies that they saw."""

    id: str
    model: str
    system: str
    engine: str
    isl_tokens: int
    osl_tokens: int
    clients: int
    pools: Pools
    inference_max: bool
    """Whether InferenceMAX measured it, or aiconfigurator's own runner."""
    fitted: bool
    """Whether the coefficients are fitted on it, or on a copy of it; the others are reported on."""
    ttft_s: float
    tpot_s: float
    day: date | None = None
    """When it was measured, where the row says so."""

    @property
    def latencies(self) -> tuple[str, str]:
        """What copies of a measurement share. Their last digits depend on who printed them."""
        return f"{self.ttft_s:.9g}", f"{self.tpot_s:.9g}"

    @property
    def mode(self) -> str:
        """``disaggregated`` or ``aggregated``."""
        return "aggregated" if self.pools.prefill is None else "disaggregated"

    @property
    def warm(self) -> bool:
        """Whether requests came before the measured ones, so that no kernel was compiled in their time."""
        return not self.inference_max or (self.day is not None and self.day >= WARMS_UP)

    @property
    def source(self) -> str:
        """Model, system and engine."""
        return f"{self.system}/{self.model}-{self.engine}"

    @property
    def speculative(self) -> str:
        """Whether guesses were made, as a word."""
        return "with MTP" if self.pools.draft_tokens else "without MTP"


def read_rows(path: Path) -> tuple[list[Row], Skipped]:
    """Return the rows that can be simulated, and the others by reason. Raises ConfigError for what is no such file."""
    rows: list[Row] = []
    skipped: Skipped = defaultdict(list)
    for number, raw in table(path):
        try:
            rows.append(_row(raw))
        except LackingError as why:
            skipped[str(why)].append(raw.get("id") or f"line {number}")
    fitted = {row.latencies for row in rows if row.fitted}
    return [replace(row, fitted=row.latencies in fitted) for row in rows], dict(skipped)


def half(ttft_ms: str, tpot_ms: str) -> bool:
    """Return whether a row is fitted on: by a hash of its latencies, so that copies of a row are in the same half."""
    return sha256(f"{ttft_ms} {tpot_ms}".encode()).digest()[0] % 2 == 0


def _row(raw: dict[str, str]) -> Row:
    path = _covered(raw)
    source = raw.get("silicon_data_source", "")
    concurrency = re.search(r"silicon_concurrency=(\d+)", source)
    if concurrency is None and not (raw.get("batch_size") and not source.strip()):
        raise LackingError(f"{raw.get('mode', '')}, {path}: the number of clients is not recorded")
    if concurrency:
        clients = _whole({**raw, "silicon_concurrency": concurrency[1]}, "silicon_concurrency", MOST_CLIENTS)
    else:
        clients = _whole(raw, "batch_size", MOST_CLIENTS) * _ranks(raw)
    if clients > MOST_CLIENTS:
        raise LackingError(f"{raw.get('mode', '')}, {path}: more than {MOST_CLIENTS} clients")
    system = _name(raw, "system").removesuffix("_sxm")
    inference_max = "source_file=" in source or "db-dump" in source
    if raw.get("mode") == "disagg":
        pools = pools_of(raw, system, clients)
    else:
        layout = (layout_of(raw, clients) if inference_max else None) or _layout(raw, inference_max)
        pools = Pools(None, (1, layout), guesses_of(raw, layout))
    return Row(
        id=raw.get("id", ""),
        model=MODELS[path],
        system=system,
        engine=_name(raw, "backend"),
        isl_tokens=_whole(raw, "isl", MOST_TOKENS),
        osl_tokens=_whole(raw, "osl", MOST_TOKENS, 2),  # one token has no TPOT
        clients=clients,
        pools=pools,
        inference_max=inference_max,
        fitted=half(raw["silicon_ttft_ms"], raw["silicon_tpot_ms"]),
        ttft_s=_ms(raw, "silicon_ttft_ms") / 1e3,
        tpot_s=_ms(raw, "silicon_tpot_ms") / 1e3,
        day=day_of(raw),
    )


def _covered(raw: dict[str, str]) -> str:
    """Return the model of a row that kernel tables cover, in the row's own words."""
    path = raw.get("model_path", "")
    if DENSE.search(path):
        raise LackingError(f"{raw.get('mode', '')}, {path}: dense, see `pdplugins validate silicon`")
    if path in UNCOVERED:
        raise LackingError(f"{path}: {UNCOVERED[path]}")
    if path not in MODELS:
        raise LackingError(f"{path}: no profile covers this model")
    if (precision := raw.get("precision", "")) not in PRECISIONS[MODELS[path]]:
        raise LackingError(f"{path}, {precision}: no profile covers this precision")
    if any(raw.get(name, "1") not in {"", "1"} for name in ("pp_size", "prefill_pp_size", "decode_pp_size")):
        raise LackingError(f"{path}: pipeline parallelism, and no profile covers it")
    if raw.get("mode") == "disagg" and MODELS[path] != "deepseek-r1":
        raise LackingError(f"disagg, {path}: no published deployment is of this model")
    return path


def _ranks(raw: dict[str, str]) -> int:
    """Return the groups of data-parallel attention, which is what the tensor degree leaves where it is not named."""
    gpus = _whole(raw, "moe_tp_size", 64) * _whole(raw, "moe_ep_size", 64)
    return max(gpus // _whole(raw, "tp_size", 64), 1)


def _layout(raw: dict[str, str], inference_max: bool) -> str:
    """Return the layout, such as ``tp8+ep8``.

    InferenceMAX records tensor and expert degrees side by side, on the same GPUs. Where the degree of the attention is
    their product, the row counts each GPU twice.
    """
    tensor, split, expert = (_whole(raw, name, 64) for name in ("tp_size", "moe_tp_size", "moe_ep_size"))
    ranks = _whole(raw, "attention_dp_size", 64) if raw.get("attention_dp_size", "") not in ("", "0") else 0
    if inference_max and split == expert and split > 1 and split * expert in {tensor, ranks}:
        tensor, ranks, split = min(tensor, split), min(ranks, split), 1
    gpus = split * expert
    ranks = ranks or max(gpus // tensor, 1)
    if tensor * ranks != gpus:
        raise LackingError(f"agg, {raw['model_path']}: attention on {tensor * ranks} GPUs and experts on {gpus}")
    parts = {"tp": tensor, "dp": ranks, "ep": expert}
    return "+".join(f"{name}{degree}" for name, degree in parts.items() if degree > 1) or "tp1"


def _name(raw: dict[str, str], name: str) -> str:
    """Return what becomes a part of a file's name."""
    text = raw.get(name, "")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", text):
        raise LackingError(f"{raw.get('mode', '')}: {name} is no name of at most 64 letters and digits")
    return text


def _whole(raw: dict[str, str], name: str, most: int, least: int = 1) -> int:
    text = raw.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise LackingError(f"{raw.get('mode', '')}: {name} is no whole number from {least} to {most}")
    return int(text)


def _ms(raw: dict[str, str], name: str) -> float:
    try:
        value = float(raw.get(name, ""))
    except ValueError:
        value = 0.0
    if not isfinite(value) or not 1e-6 <= value <= MOST_MS:
        raise LackingError(f"{name} is no time from 1e-06 to {MOST_MS:g} ms")
    return value
