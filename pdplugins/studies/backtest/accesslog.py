"""The traffic of a log with a line of JSON for each request: exactly as it was.

Two kinds are read, also compressed (``.gz``): the request trace of Dynamo's frontend (``DYN_REQUEST_TRACE=1``), and
objects with these fields, under any of their usual names. Only the first three are needed.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pdplugins import metrics
from pdplugins.contracts.request import Slo
from pdplugins.errors import TraceError, one_line
from pdplugins.files import TwiceError, is_file, object_once
from pdplugins.results import Spread
from pdplugins.studies.backtest.recording import PARTS, AttainmentBounds, Latencies, Recording
from pdplugins.workloads import rows
from pdplugins.workloads.trace import TraceRequest

UNIX_MS = "request_received_ms"
TIME = {"time": 1.0, "timestamp": 1.0, "ts": 1.0, "arrival_s": 1.0, UNIX_MS: 1e-3}
"""Names of the arrival, each with its unit in seconds; a text is a time in ISO 8601."""
ISL = ("isl_tokens", "input_tokens", "prompt_tokens", "input_length")
OSL = ("osl_tokens", "output_tokens", "completion_tokens", "output_length")
TTFT = {"ttft_s": 1.0, "ttft_ms": 1e-3}
ITL = {"itl_s": 1.0, "tpot_s": 1.0, "avg_itl_ms": 1e-3, "itl_ms": 1e-3, "tpot_ms": 1e-3}
DYNAMO = "dynamo.request.trace.v1"
GATEWAY = {"at", "took_s"}
"""What tells a line of our gateway (`pdplugins.gateway.account`): when a request ended, and how long it took."""
MOST_LINES = 1_000_000
LONGEST = 2**20
"""Characters of the longest line."""
EARLIEST_S, LATEST_S = 1e9, 1e11
"""Unix times from the year 2001 on; in milliseconds the latest is of the year 1973."""
MOST_DAYS = 31
DAY_S = 86_400
_DECODER = json.JSONDecoder(object_pairs_hook=object_once)


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the log."""

    at_s: float
    isl_tokens: int
    osl_tokens: int
    ttft_s: float | None
    itl_s: float | None


def read(path: Path, slo: Slo, start_s: float | None = None, end_s: float | None = None) -> Recording:
    """Return the traffic of a log between two Unix times. Raises TraceError with line and field for what is missing."""
    if not is_file(path):
        raise TraceError(
            f"--access-log {path}: no such file, or a pipe or folder; give a log with a line of JSON for each request"
        )
    first_s, last_s = (-math.inf if start_s is None else start_s), (math.inf if end_s is None else end_s)
    lines = sorted((line for line in _lines(path) if first_s <= line.at_s < last_s), key=lambda line: line.at_s)
    if len(lines) < 2:
        raise TraceError(f"{path}: {len(lines)} requests with an answer at that time; a backtest needs two at least")
    began_s = start_s if start_s is not None else lines[0].at_s
    duration_s = max((end_s if end_s is not None else lines[-1].at_s) - began_s, 1e-3)
    if duration_s > MOST_DAYS * DAY_S:
        raise TraceError(
            f"{path}: {duration_s / DAY_S:.0f} days, and a backtest takes {MOST_DAYS}; choose a part with --from and "
            "--to, or mend the times if they are no Unix seconds"
        )
    return Recording(
        name=path.name,
        requests=[TraceRequest(round(line.at_s - began_s, 6), line.isl_tokens, line.osl_tokens) for line in lines],
        duration_s=duration_s,
        ttft=_spread([line.ttft_s for line in lines]),
        itl=_spread([line.itl_s for line in lines if line.osl_tokens > 1]),
        attainment=_attainment(lines, slo),
        by_part=tuple(_by_part(lines, began_s, duration_s)),
        pools=(),
        notes=("arrivals and lengths are those of the log; requests without an answer are left out",),
        per_request=True,
    )


def _spread(values: list[float | None]) -> Spread:
    return Spread.of([value for value in values if value is not None])


def _attainment(lines: list[Line], slo: Slo) -> AttainmentBounds | None:
    if any(line.ttft_s is None or (line.itl_s is None and line.osl_tokens > 1) for line in lines):
        return None
    ttft_s, itl_s = np.array([(line.ttft_s, line.itl_s or 0.0) for line in lines], dtype=float).T
    share = float(metrics.inside(ttft_s, itl_s, slo).mean())
    return AttainmentBounds(share, share)


def _by_part(lines: list[Line], began_s: float, duration_s: float) -> Iterator[Latencies]:
    for index in range(PARTS):
        start_s, end_s = (duration_s * part / PARTS for part in (index, index + 1))
        until_s = math.inf if index == PARTS - 1 else end_s  # a log ends with a request
        part = [line for line in lines if start_s <= line.at_s - began_s < until_s]
        ttft = [line.ttft_s for line in part if line.ttft_s is not None]
        gaps = [(line.itl_s, line.osl_tokens - 1) for line in part if line.itl_s is not None and line.osl_tokens > 1]
        weight = sum(count for _, count in gaps)
        yield Latencies(
            start_s,
            end_s,
            len(part),
            sum(ttft) / len(ttft) if ttft else None,
            sum(itl_s * count for itl_s, count in gaps) / weight if weight else None,
        )


# --- lines ------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[Line]:
    for number, text in _texts(path):
        if number > MOST_LINES or len(text) > LONGEST:
            raise TraceError(f"{path}: line {number}: longer than {LONGEST} characters, or than {MOST_LINES} lines")
        if text.isspace():
            continue
        try:
            row = _DECODER.decode(text)
        except TwiceError as error:
            raise TraceError(f"{path}: line {number}: {error}") from None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise TraceError(
                f"{path}: line {number}: {one_line(text, 40)!r} is no JSON object. A log as text, such as that of "
                "'pdplugins gateway --access-log', lacks the fields isl_tokens and osl_tokens, the lengths; with "
                "--set access_log_json=true it writes JSON, of which keep the lines that begin with {"
            )
        if (fields := _fields(path, number, row)) is not None and (line := _line(path, number, fields)) is not None:
            yield line


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix != ".gz":
        yield from rows.lines(path)
        return
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") as file:
            yield from enumerate(iter(lambda: file.readline(LONGEST + 1), ""), start=1)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(f"{path}: {one_line(error)}; give a log of JSON lines, plain or in gzip") from None


def _fields(path: Path, number: int, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a request; None for a line that is of none, or of one without an answer."""
    row = row["event"] if isinstance(row.get("event"), dict) else row
    if row.get("schema") == DYNAMO:
        if row.get("event_type") != "request_end":
            return None
        request = row.get("request")
        if not isinstance(request, dict):
            raise rows.malformed(path, number, "request", request, "an object")
        replay = request.get("replay")
        row = {**(replay if isinstance(replay, dict) else {}), **request}
    elif row.keys() >= GATEWAY:
        if "prompt_tokens" not in row:  # the gateway answered by itself, as it does for /health
            return None
        took_s = rows.real(path, number, "took_s", row["took_s"])
        row = {**row, "time": _moment_s(path, number, "at", row["at"]) - took_s}
    return None if _failed(row.get("status")) or row.get("error") else row


def _failed(status: object) -> bool:
    """Tell whether a HTTP status is an error. Many logs have it as a text."""
    if isinstance(status, str) and re.fullmatch("[0-9]{3}", status):
        return int(status) >= 400
    return isinstance(status, int) and status >= 400


def _line(path: Path, number: int, row: Mapping[str, Any]) -> Line | None:
    """Return a request; None for one that has no output."""
    isl, osl = (_tokens(path, number, row, names) for names in (ISL, OSL))
    if not isl or not osl:
        return None
    return Line(
        _time_s(path, number, row), isl, osl, _seconds(path, number, row, TTFT), _seconds(path, number, row, ITL)
    )


def _tokens(path: Path, number: int, row: Mapping[str, Any], names: tuple[str, ...]) -> int:
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        raise TraceError(f"{path}: line {number}: field {names[0]} is missing (or {', '.join(names[1:])})")
    return rows.tokens(path, number, name, row[name], least=0)


def _time_s(path: Path, number: int, row: Mapping[str, Any]) -> float:
    for name, unit in TIME.items():
        value = row.get(name)
        if isinstance(value, str):
            return _moment_s(path, number, name, value)
        if value is not None:
            found = rows.real(path, number, name, value)
            if name == "timestamp" and "input_length" in row and not EARLIEST_S <= found <= LATEST_S:
                return found / 1e3  # a trace in Mooncake's format has milliseconds
            if unit * found > LATEST_S:
                expected = "Unix seconds; a field of milliseconds is called request_received_ms"
                raise rows.malformed(path, number, name, value, expected)
            if name == UNIX_MS and found and unit * found < EARLIEST_S:
                raise rows.malformed(path, number, name, value, "Unix milliseconds; a field of seconds is called time")
            return unit * found
    raise TraceError(f"{path}: line {number}: field time is missing (or {', '.join(list(TIME)[1:])})")


def _moment_s(path: Path, number: int, name: str, value: object) -> float:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise rows.malformed(path, number, name, value, "a time in ISO 8601") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(path: Path, number: int, row: Mapping[str, Any], names: Mapping[str, float]) -> float | None:
    for name, unit in names.items():
        if row.get(name) is not None:
            return unit * rows.real(path, number, name, row[name])
    return None
