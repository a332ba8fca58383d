"""Traces as JSON lines: the Mooncake format (Qin et al., FAST 2025), extended by sessions.

Each line is one object: ``timestamp`` in ms, ``input_length``, ``output_length``, and optionally ``hash_ids`` of
512-token prefix blocks. The object of a session is its first round, plus ``session`` (a name) and ``rounds``. These are
a list of ``{"gap", "new_length", "output_length"}`` with the gap in ms. A round that does not repeat the whole
conversation so far also has ``history_length``. A request may also have what it asks for itself (`TERMS`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pdplugins.contracts.register import NoSettings
from pdplugins.contracts.request import Terms
from pdplugins.errors import TraceError
from pdplugins.files import TwiceError, object_once, whole_text
from pdplugins.workloads import rows
from pdplugins.workloads.trace import Round, TraceRequest
from pdplugins.workloads.transform import LONGEST_S

TERMS = ("priority", "weight", "ttft", "tpot", "tenant", "tenant_weight")
"""Fields of what a request asks for itself, see `pdplugins.types.Terms`. Objectives are in ms."""
LEAST_MS, LEAST_WEIGHT = 1e-3, 1e-6
MOST_BLOCK = 2**62
BLOCK_TOKENS = 512
"""Tokens of one prefix block of a Mooncake trace."""
_DECODER = json.JSONDecoder(object_pairs_hook=object_once)


def mooncake_jsonl(_settings: NoSettings, path: Path) -> Iterator[TraceRequest]:
    """Read a Mooncake trace. Raises TraceError with file, line and field for what is malformed."""
    for number, line in rows.lines(path):
        if line.isspace():
            continue
        try:
            row = _DECODER.decode(line)
        except TwiceError as error:
            raise TraceError(f"{path}: line {number}: {error}") from None
        except (ValueError, RecursionError) as error:
            column = getattr(error, "colno", 1)
            raise TraceError(f"{path}: line {number}, column {column}: not JSON; is the file cut off?") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}: line {number}, column 1: {line.strip()[:40]!r} is not a JSON object")
        yield _request(path, number, row)


def _request(path: Path, number: int, row: dict[str, Any]) -> TraceRequest:
    blocks = row.get("hash_ids", [])
    if not isinstance(blocks, list) or not set(map(type, blocks)) <= {int} or min(blocks, default=0) < 0:
        raise rows.malformed(path, number, "hash_ids", blocks, "a list of whole numbers from 0 on")
    session, later = row.get("session"), row.get("rounds", [])
    if not isinstance(session, str | None):
        raise rows.malformed(path, number, "session", session, "a name")
    if not isinstance(later, list):
        raise rows.malformed(path, number, "rounds", later, "a list of rounds")
    return TraceRequest(
        arrival_s=_seconds(path, number, "timestamp", row.get("timestamp")),
        isl_tokens=rows.tokens(path, number, "input_length", row.get("input_length")),
        osl_tokens=rows.tokens(path, number, "output_length", row.get("output_length")),
        blocks=tuple(blocks),
        session=session,
        rounds=tuple(_round(path, number, f"rounds[{index}]", part) for index, part in enumerate(later))
        if later
        else (),
        terms=_terms(path, number, row),
    )


def _terms(path: Path, number: int, row: dict[str, Any]) -> Terms | None:
    """Return what a request asks for itself: ``priority``, ``weight``, ``ttft`` and ``tpot`` in ms, and ``tenant``."""
    given = {name: row[name] for name in TERMS if row.get(name) is not None}
    if not given:
        return None

    def real(name: str, least: float) -> float:
        wanted, value = f"a number from {least:g} up, of at most {rows.LARGEST:g}", given.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= rows.LARGEST:
            raise rows.malformed(path, number, name, value, wanted)
        return float(value)

    priority, tenant = given.get("priority", 0), given.get("tenant")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise rows.malformed(path, number, "priority", priority, "a whole number")
    if not isinstance(tenant, str | None):
        raise rows.malformed(path, number, "tenant", tenant, "a name")
    ttft_s, tpot_s = (round(real(name, LEAST_MS) / 1e3, 6) if name in given else None for name in ("ttft", "tpot"))
    weight, share = real("weight", LEAST_WEIGHT), real("tenant_weight", LEAST_WEIGHT)
    return Terms(priority, weight, ttft_s, tpot_s, tenant, share)


def _round(path: Path, number: int, column: str, row: Any) -> Round:
    if not isinstance(row, dict):
        raise rows.malformed(path, number, column, row, "a JSON object")

    def tokens(name: str, least: int = 1) -> int:
        return rows.tokens(path, number, f"{column}.{name}", row.get(name), least)

    gap_s = round(_seconds(path, number, f"{column}.gap", row.get("gap"), 1e3 * LONGEST_S), 6)
    history = tokens("history_length", least=0) if "history_length" in row else None
    return Round(gap_s, tokens("new_length"), tokens("output_length"), history)


def _seconds(path: Path, number: int, column: str, ms: object, most_ms: float = rows.LARGEST) -> float:
    wanted = f"a number of milliseconds from 0 to {most_ms:.12g}"
    if isinstance(ms, bool) or not isinstance(ms, int | float) or ms > most_ms:
        raise rows.malformed(path, number, column, ms, wanted)
    return rows.real(path, number, column, ms, wanted) / 1e3


def write(requests: Iterable[TraceRequest], path: Path) -> None:
    """Write a trace with its sessions. Times are rounded to microseconds. `mooncake_jsonl` can read the file."""
    with whole_text(path) as file:
        for request in requests:
            row: dict[str, Any] = {
                "timestamp": _ms(request.arrival_s),
                "input_length": request.isl_tokens,
                "output_length": request.osl_tokens,
            }
            if request.blocks:
                row["hash_ids"] = request.blocks
            if request.session is not None:
                row["session"] = request.session
            if request.rounds:
                row["rounds"] = [_row(later) for later in request.rounds]
            row |= _asked(request.terms)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def _asked(terms: Terms | None) -> dict[str, Any]:
    if terms is None:
        return {}
    row = asdict(terms)
    row |= {name: None if (time_s := row.pop(f"{name}_s")) is None else _ms(time_s) for name in ("ttft", "tpot")}
    return {name: row[name] for name in TERMS if row[name] is not None}


def _row(later: Round) -> dict[str, Any]:
    row = {"gap": _ms(later.gap_s), "new_length": later.new_tokens, "output_length": later.osl_tokens}
    return row if later.history_tokens is None else {**row, "history_length": later.history_tokens}


def _ms(time_s: float) -> float:
    ms = round(time_s * 1e3, 3)
    return int(ms) if ms.is_integer() else ms


def write_mooncake(requests: Iterable[TraceRequest], path: Path) -> None:
    """Write a trace for Dynamo's replay. Raises TraceError when it has sessions, which the replay does not know.

    Requests without `blocks` get unique blocks, so that no prefix is shared that the trace does not share.
    """
    kept = list(requests)
    if any(request.rounds for request in kept):
        raise TraceError(
            "the trace has sessions, whose rounds wait for answers; Dynamo's offline replay takes single requests "
            "only: use pdplugins simulate or dynamo serve --trace"
        )
    numbers: dict[int, int] = {}
    if any(not 0 <= block < MOST_BLOCK for request in kept for block in request.blocks):
        for request in kept:  # Dynamo reads no others; only which are equal counts
            for block in request.blocks:
                numbers.setdefault(block, len(numbers))
        kept = [replace(request, blocks=tuple(numbers[block] for block in request.blocks)) for request in kept]
    fresh = _counter(1 + max((block for request in kept for block in request.blocks), default=-1))
    with whole_text(path) as file:
        for request in kept:
            count = -(-request.isl_tokens // BLOCK_TOKENS)
            row = {
                "timestamp": round(request.arrival_s * 1e3),
                "input_length": request.isl_tokens,
                "output_length": request.osl_tokens,
                "hash_ids": list(request.blocks) or [fresh() for _ in range(count)],
            }
            file.write(json.dumps(row) + "\n")


def _counter(start: int) -> Callable[[], int]:
    numbers = iter(range(start, 1 << 62))
    return lambda: next(numbers)
