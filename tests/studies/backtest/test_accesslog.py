"""Logs of requests: what is read, and which field is named where it is missing."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import test_utils, web

from pdplugins.contracts.request import Slo
from pdplugins.errors import TraceError
from pdplugins.gateway import account
from pdplugins.gateway.account import ACCOUNT, Account, JsonAccessLogger
from pdplugins.studies.backtest.accesslog import read
from tests.command_line import invoke

SLO = Slo(1.0, 0.05)
START_S = 1_770_000_000.0


def plain(second: float, **fields: Any) -> dict[str, Any]:
    times = {"time": START_S + second, "ttft_s": 0.2, "itl_s": 0.02}
    return {**times, "prompt_tokens": 100, "completion_tokens": 11, "status": 200, **fields}


def dynamo(second: float, **fields: Any) -> dict[str, Any]:
    """A line of Dynamo's request trace."""
    request = {
        **{"request_received_ms": 1e3 * (START_S + second), "output_tokens": 11, "ttft_ms": 200.0, "avg_itl_ms": 20.0},
        "replay": {"trace_block_size": 64, "input_length": 100, "input_sequence_hashes": [1, 2]},
        **fields,
    }
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    return {"timestamp": 7, "event": event}


def log(folder: Path, lines: list[Any], name: str = "log.jsonl") -> Path:
    path = folder / name
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("line", [plain, dynamo])
@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_every_format_gives_the_same_traffic(tmp_path: Path, line: Any, name: str) -> None:
    found = read(log(tmp_path, [line(5.0), line(0.0), "\n", line(2.5)], name), SLO)
    assert [(one.arrival_s, one.isl_tokens, one.osl_tokens) for one in found.requests] == [
        (0.0, 100, 11),
        (2.5, 100, 11),
        (5.0, 100, 11),
    ]
    assert found.ttft.mean == pytest.approx(0.2)
    assert found.itl.mean == pytest.approx(0.02)
    assert found.attainment is not None
    assert (found.attainment.low, found.attainment.high) == (1.0, 1.0)
    assert found.duration_s == 5.0


RECORDED = (Path(__file__).parents[2] / "data/dynamo-request-trace.jsonl").read_text(encoding="utf-8")
"""A line that the frontend of Dynamo 1.4.2 has written: it does not tell the times of the answer."""


def test_what_a_frontend_has_written_is_read(tmp_path: Path) -> None:
    found = read(log(tmp_path, [RECORDED, RECORDED.replace("743226", "745226")], "trace.jsonl.gz"), SLO)
    assert [(one.arrival_s, one.isl_tokens, one.osl_tokens) for one in found.requests] == [(0.0, 32, 1), (2.0, 32, 1)]
    assert (found.ttft.mean, found.attainment) == (None, None)


class Answered(web.Response):
    """A response that has been sent."""

    body_length = 2210


def ours(second: float, status: int = 200, **known: Any) -> str:
    """A line as the gateway's own logger writes it: `second` is when the request came, and its answer took 1.2 s."""
    said: list[str] = []
    request = test_utils.make_mocked_request("POST" if known else "GET", "/v1/completions" if known else "/health")
    if known:
        request[ACCOUNT] = Account("4c1f", "m", stream=True, outcome="ok", workers=("w0", "w1"), **known)
    with pytest.MonkeyPatch.context() as patch:
        ended = datetime.fromtimestamp(START_S + second + 1.2, UTC)
        patch.setattr(account, "datetime", SimpleNamespace(now=lambda _: ended))
        JsonAccessLogger(SimpleNamespace(info=said.append), "").log(request, Answered(status=status), 1.2)
    return said[0] + "\n"


def test_the_log_of_our_gateway_is_read(tmp_path: Path) -> None:
    """It tells when a request ended. What workers did not serve is no traffic."""
    known = {"prompt_tokens": 100, "output_tokens": 11, "ttft_s": 0.2, "tpot_s": 0.02}
    lines = [ours(2.5, **known), ours(0.0, **known), ours(1.0), ours(1.5, 503, prompt_tokens=100, output_tokens=0)]
    found = read(log(tmp_path, [*lines, ours(5.0, **known)]), SLO)
    assert [(one.arrival_s, one.isl_tokens, one.osl_tokens) for one in found.requests] == [
        (0.0, 100, 11),
        (2.5, 100, 11),
        (5.0, 100, 11),
    ]
    assert (found.ttft.mean, found.itl.mean) == (pytest.approx(0.2), pytest.approx(0.02))


def test_a_log_with_a_byte_order_mark_is_read_plain_and_packed(tmp_path: Path) -> None:
    first, later = (json.dumps(plain(second)) + "\n" for second in (0.0, 5.0))
    lines = ["\ufeff" + first, later]
    packed, loose = (read(log(tmp_path, lines, name), SLO) for name in ("log.jsonl.gz", "log.jsonl"))
    assert packed.requests == loose.requests
    assert len(loose.requests) == 2


def test_only_the_time_that_is_asked_for_counts(tmp_path: Path) -> None:
    path = log(tmp_path, [plain(second) for second in range(10)])
    found = read(path, SLO, START_S + 2, START_S + 6)
    assert [one.arrival_s for one in found.requests] == [0.0, 1.0, 2.0, 3.0]
    assert found.duration_s == 4.0


def test_no_time_is_before_the_beginning_of_times(tmp_path: Path) -> None:
    path = log(tmp_path, [plain(second) for second in range(10)])
    with pytest.raises(TraceError, match="0 requests with an answer at that time"):
        read(path, SLO, None, 0.0)


def test_times_are_those_of_iso_8601_too(tmp_path: Path) -> None:
    times = ("2026-05-04T12:00:00Z", "2026-05-04T14:00:01.5+02:00", "2026-05-04T12:00:03")
    found = read(log(tmp_path, [plain(0.0, time=time) for time in times]), SLO)
    assert [one.arrival_s for one in found.requests] == [0.0, 1.5, 3.0]


def test_what_has_no_answer_is_left_out_and_what_has_no_times_is_not_judged(tmp_path: Path) -> None:
    lines = [plain(0.0), plain(1.0, status=503), plain(2.0, completion_tokens=0), plain(3.0, error="gone"), plain(4.0)]
    other = dynamo(5.0)
    other["event"]["event_type"] = "tool_start"
    assert len(read(log(tmp_path, [*lines, other]), SLO).requests) == 2
    without = [plain(0.0), plain(1.0, itl_s=None)]
    assert read(log(tmp_path, without), SLO).attainment is None
    single = [plain(0.0), plain(1.0, itl_s=None, completion_tokens=1)]  # it has no gap between tokens
    assert read(log(tmp_path, single), SLO).attainment is not None
    bare = [plain(0.0), plain(1.0, ttft_s=None)]
    found = read(log(tmp_path, bare), SLO)
    assert found.attainment is None
    assert found.ttft.mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"time": 1.0, "prompt_tokens": 5}, "line 2: field osl_tokens is missing"),
        ({"time": 1.0, "completion_tokens": 5}, "line 2: field isl_tokens is missing"),
        ({"prompt_tokens": 5, "completion_tokens": 5}, "line 2: field time is missing"),
        (plain(0.0, time="noon"), "'noon' is not a time in ISO 8601"),
        (plain(0.0, prompt_tokens=-1), "column prompt_tokens: '-1' is not a whole number"),
        (plain(0.0, time=1e3 * START_S), "is not Unix seconds; a field of milliseconds is called request_received_ms"),
        (plain(0.0, ttft_s="soon"), "column ttft_s: 'soon' is not a number"),
        ('127.0.0.1 "POST /v1/completions HTTP/1.1" 200 512 B 0.5 s\n', "lacks the fields isl_tokens and osl_tokens"),
        ("[" * 100_000 + "\n", "is no JSON object"),
        (
            '{"time": 1, "prompt_tokens": 5, "completion_tokens": 5, "prompt_tokens": 900}\n',
            "line 2: key 'prompt_tokens' stands twice; keep one of them",
        ),
        ("x" * (2**20 + 1) + "\n", "longer than 1048576 characters"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path: Path, line: Any, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        read(log(tmp_path, [plain(0.0), line]), SLO)


def test_a_broken_archive_and_an_empty_log_are_refused(tmp_path: Path) -> None:
    whole = log(tmp_path, [plain(second) for second in range(100)], "log.gz").read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="plain or in gzip"):
        read(tmp_path / "cut.gz", SLO)
    with pytest.raises(TraceError, match="no such file, or a pipe or folder; give a log with a line of JSON"):
        read(tmp_path / "gone.jsonl", SLO)
    with pytest.raises(TraceError, match="0 requests with an answer"):
        read(log(tmp_path, ["\n"]), SLO)


@pytest.mark.moderate
def test_the_command_takes_a_log(tmp_path: Path) -> None:
    path = log(tmp_path, [plain(0.4 * number) for number in range(200)])
    words = ["backtest", "--access-log", str(path), "--prefill", "2", "--decode", "1", "--jobs", "1", "--gpus", "4"]
    done = invoke(*words)
    assert done.exception is None
    assert "Recorded: 200 requests of log.jsonl in 80 s" in done.stdout
    assert "fixed 2P1D" in done.stdout
    assert "100.0 % inside both SLOs" in done.stdout


@pytest.mark.parametrize("line", [plain(1e9), dynamo(1e9), plain(0, time="0001-01-01T00:00:00")])
def test_a_time_that_makes_the_log_years_long_is_refused_before_years_are_simulated(tmp_path: Path, line: Any) -> None:
    path = log(tmp_path, [plain(0), plain(1), line])
    with pytest.raises(TraceError, match=r"log.jsonl: \d+ days, and a backtest takes 31; choose a part with --from"):
        read(path, SLO)
    assert len(read(path, SLO, START_S, START_S + 5).requests) == 2


def test_a_compressed_line_without_end_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b"a" * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="line 1: longer than 1048576 characters"):
            read(path, SLO)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("start", "unit"), [(0, 1000), (1_700_000_000_000, 1000), (1_700_000_000, 1)])
def test_a_trace_in_mooncakes_format_has_milliseconds(tmp_path: Path, start: int, unit: int) -> None:
    """A log with the same fields may have Unix seconds in its `timestamp`."""
    lines = [{"timestamp": start + unit * at_s, "input_length": 100, "output_length": 10} for at_s in range(5)]
    found = read(log(tmp_path, lines), SLO)
    assert [one.arrival_s for one in found.requests] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_seconds_in_a_field_of_milliseconds_are_refused(tmp_path: Path) -> None:
    line = {"request_received_ms": 1_700_000_000, "input_tokens": 100, "output_tokens": 10}
    with pytest.raises(TraceError, match="is not Unix milliseconds; a field of seconds is called time"):
        read(log(tmp_path, [line]), SLO)
    good = [line | {"request_received_ms": 1_700_000_000_000 + at_ms} for at_ms in (0, 1000)]
    assert len(read(log(tmp_path, good), SLO).requests) == 2


@pytest.mark.parametrize("status", [500, "500", 404, "429"])
def test_a_request_that_failed_is_left_out_however_its_status_is_written(tmp_path: Path, status: object) -> None:
    lines = [plain(second) | {"status": status if second > 1 else "200"} for second in range(5)]
    assert len(read(log(tmp_path, lines), SLO).requests) == 2


def test_the_parts_of_a_log_have_all_of_its_requests(tmp_path: Path) -> None:
    """The last one comes at its very end."""
    found = read(log(tmp_path, [plain(second) for second in range(25)]), SLO)
    assert sum(part.requests for part in found.by_part) == 25
