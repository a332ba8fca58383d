"""What the project that measured the rows published of their deployments, and the rows do not say.

InferenceMAX (github.com/SemiAnalysisAI/InferenceX) keeps the deployments that it measures in
``.github/configs/nvidia-master.yaml``. `profiles/measured/disaggregated.csv` has those of DeepSeek R1 on H100 and H200
in two pools, with the days on which they were in force. A row belongs to the deployments that agree with all of it.
Nothing is chosen by its errors: where several agree, the row lacks what would tell them apart.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import date
from functools import cache

from pdplugins.resources import data_dir

MTP_ADDED = ("trtllm", "1.1.0rc2.post2", date(2026, 1, 14))
"""Engine, version and day of the run that added MTP to one pool, TensorRT-LLM on H200."""
LAYOUTS_RECORDED = date(2025, 11, 3)
"""From this day on the layout of a TensorRT-LLM worker is an input of its script, and InferenceMAX records it."""
MARGIN_DAYS = 1
"""A run ends within a day of the commit that started it."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The workers of a row."""

    prefill: tuple[int, str] | None
    """Number and layout of the prefill workers; None for one pool that does both."""
    decode: tuple[int, str]
    """Number and layout of the decode workers, or of those that do both."""
    draft_tokens: int
    """Tokens guessed in a decode step; 0 without speculative decoding."""
    decode_batch: int | None = None
    """Most requests that one decode worker runs at once, all its groups together; None where nobody says."""


class LackingError(Exception):
    """A row that cannot be simulated; the message says what it lacks."""


def guesses_of(raw: dict[str, str], layout: str) -> int:
    """Return the guessed tokens of a row in one pool: its script takes one with data-parallel attention, else three."""
    if (raw.get("backend", ""), raw.get("backend_version", ""), day_of(raw)) != MTP_ADDED:
        return 0
    return 1 if layout.startswith("dp") else 3


def layout_of(raw: dict[str, str], clients: int) -> str | None:
    """Return the layout that the script of a row's day sets, and the row does not record; None where it records it.

    Until `LAYOUTS_RECORDED` the scripts of TensorRT-LLM gave each GPU experts of its own, and DeepSeek R1 data-parallel
    attention from a number of clients on. The rows have neither. Raises LackingError.
    """
    day, gpus = day_of(raw), raw.get("tp_size", "")
    if raw.get("backend") != "trtllm" or day is None or day >= LAYOUTS_RECORDED:
        return None
    if not re.fullmatch("[1-9][0-9]?", gpus):
        raise LackingError(f"{raw.get('mode', '')}: tp_size is no whole number from 1 to 99")
    if "DeepSeek" in raw.get("model_path", "") and clients > (32 if raw.get("isl") == "8192" else 64):
        return f"dp{gpus}+ep{gpus}"
    return "tp1" if gpus == "1" else f"tp{gpus}+ep{gpus}"


def pools_of(raw: dict[str, str], system: str, clients: int) -> Pools:
    """Return the pools of a disaggregated row. Raises LackingError when none or several deployments agree with it."""
    key = (system, raw.get("backend", ""), raw.get("backend_version", ""), raw.get("isl"), raw.get("osl"), str(clients))
    day, found = day_of(raw) or date.min, set()
    for entry in _deployments().get(key, ()):
        first, last = date.fromisoformat(entry["first_day"]), date.fromisoformat(entry["last_day"])
        if (first - day).days > MARGIN_DAYS or (day - last).days > MARGIN_DAYS:
            continue
        counts = ((raw.get(f"{role}_num_workers"), entry[f"{role}_workers"]) for role in ("prefill", "decode"))
        if all(recorded in {"", None, count} for recorded, count in counts):
            found.add(tuple(entry[name] for name in COLUMNS))
    where = f"disagg, {raw['model_path']} on {system}, {raw.get('backend', '')}"
    if not found:
        raise LackingError(f"{where}: no published deployment has this number of clients")
    if len({entry[:-1] for entry in found}) > 1:
        raise LackingError(f"{where}: worker counts, layouts or batches are not recorded, and several published fit")
    if len(found) > 1:
        raise LackingError(f"{where}: whether it guessed tokens is not recorded, and was published both ways")
    (prefill, prefill_layout, decode, decode_layout, batch, guesses), *_ = found
    if int(guesses) < 0:
        raise LackingError(f"{where}: it guessed tokens, but not how many is published")
    return Pools(
        (int(prefill), prefill_layout), (int(decode), decode_layout), int(guesses), int(batch) if batch else None
    )


COLUMNS = ("prefill_workers", "prefill_layout", "decode_workers", "decode_layout", "decode_batch", "draft_tokens")


@cache
def _deployments() -> dict[tuple[str | None, ...], list[dict[str, str]]]:
    found: dict[tuple[str | None, ...], list[dict[str, str]]] = {}
    with (data_dir("profiles") / "measured" / "disaggregated.csv").open(newline="", encoding="utf-8") as file:
        for entry in csv.DictReader(file):
            key = tuple(entry[name] for name in ("system", "engine", "image", "isl_tokens", "osl_tokens", "clients"))
            found.setdefault(key, []).append(entry)
    return found


def day_of(raw: dict[str, str]) -> date | None:
    """Return the day on which a row was measured; None where it does not say."""
    found = re.search(r"measured=(\d{4})-(\d\d)-(\d\d)", raw.get("silicon_data_source", ""))
    try:
        return date(int(found[1]), int(found[2]), int(found[3])) if found else None
    except ValueError:
        return None
