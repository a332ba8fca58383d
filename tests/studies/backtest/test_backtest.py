"""``pdplugins backtest`` over a real Prometheus: what ran comes out as it was recorded, and the rest beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pdplugins.errors import ConfigError, TraceError
from pdplugins.sim.core.records import Record
from tests.command_line import printed
from tests.studies.backtest.recorded import config, page, recorded, served, traffic

DURATION_S = 1800.0
POOLS = [(0.0, 2, 1), (DURATION_S - 30, 0, 0)]
"""The gauge says nothing of use at the end, as when a stack is taken down."""
LATER_S = 3600.0
"""The second recording is of two models, and begins so long before the first one."""


@dataclass(frozen=True)
class Server:
    url: str
    start_s: float
    records: list[Record]

    def time(self, offset_s: float) -> str:
        return datetime.fromtimestamp(self.start_s + offset_s, UTC).isoformat()

    @property
    def span(self) -> list[str]:
        return ["--prometheus", self.url, "--from", self.time(0), "--to", self.time(DURATION_S)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("prometheus")
    start_s = float(int(time.time() - 2 * LATER_S))
    records = served(traffic(3.0, DURATION_S), config(*POOLS[0][1:]))
    few = served(traffic(1.0, 300.0), config())
    pages = [
        page(records, start_s, DURATION_S, POOLS),
        page(few, start_s - LATER_S, 300.0, []),
        page(few, start_s - LATER_S, 300.0, [], model="other"),
    ]
    with recorded(folder, pages) as url:
        yield Server(url, start_s, records)


def row(found: dict[str, Any], name: str) -> dict[str, Any]:
    return dict(next(one for one in found["rows"] if one["name"] == name))


@pytest.mark.moderate
def test_what_ran_comes_out_as_it_was_recorded(server: Server, tmp_path: Path) -> None:
    """The recording is of a simulated run, so that its simulation must give the same but for how it is rebuilt."""
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    said = printed("backtest", *server.span, "--jobs", "1", "--json", str(out), "--html", str(html))
    found = json.loads(out.read_text())
    assert found["kind"] == "simulated"
    assert found["recording"]["requests"] == pytest.approx(len(server.records), rel=0.02)
    assert found["recording"]["pools"] == [{"at_s": 0.0, "prefill": 2, "decode": 1}]
    assert found["recording"]["gpu_hours"] == pytest.approx(4 * DURATION_S / 3600, rel=1e-4)
    off = {one["name"]: one["off"] for one in found["beside"]}
    assert abs(off["ITL mean"]) < 0.05
    assert abs(off["TTFT mean"]) < 0.2
    mean = sum(r.isl_tokens for r in server.records) / len(server.records)
    assert f"{mean:.0f}"[:2] in said
    assert "Trust: simulated as it ran" in said
    ran, fixed = row(found, "as it ran"), row(found, "fixed 2P1D")
    assert ran["ttft_s"] == fixed["ttft_s"]
    low, high = found["recording"]["slo_attainment"]
    assert low - 0.02 <= ran["slo_attainment"] <= high + 0.02
    assert row(found, "dopd")["pools"] == "from 2P1D"
    assert sum(one["name"].startswith("fixed") for one in found["rows"]) == 6
    assert html.read_text().startswith("<!doctype html>")
    assert len(found["by_time"]) == 12


@pytest.mark.moderate
def test_a_smaller_pool_would_have_been_worse_and_a_wrong_one_is_not_trusted(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    said = printed("backtest", *server.span, "--profile", "h100/llama-3.1-8b", "--jobs", "1", "--json", str(out))
    assert "Do not rely on this" in said
    found = json.loads(out.read_text())
    fewest, most = row(found, "fixed 1P1D"), found["rows"][-1]
    assert fewest["gpus"] < most["gpus"]
    assert fewest["ttft_s"]["mean"] > most["ttft_s"]["mean"]


@pytest.mark.moderate
def test_a_model_is_asked_for_where_there_are_two(server: Server) -> None:
    early = ["--prometheus", server.url, "--from", server.time(-LATER_S), "--to", server.time(300 - LATER_S)]
    with pytest.raises(ConfigError, match=r"--model: say which of llama, other"):
        printed("backtest", *early)
    with pytest.raises(ConfigError, match=r"--model gone: not recorded at that time; there is llama, other"):
        printed("backtest", *early, "--model", "gone")
    said = printed("backtest", *early, "--model", "Other", "--jobs", "1")
    assert "of other in 300 s" in said
    assert "Which workers there were is not recorded; name them with --prefill and --decode" in said
    said = printed("backtest", *early, "--model", "other", "--jobs", "1", "--prefill", "2", "--decode", "1")
    assert "Trust: simulated as it ran" in said


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        (["--step-s", "16"], ConfigError, "metrics are recorded every 1[56]"),
        (["--step-s", "1500"], ConfigError, "are not 2 to 2000 of them"),
        (["--match", "model=none"], TraceError, "was recorded at that time"),
        (["--match", 'x"y=1'], ConfigError, "write LABEL=VALUE"),
        (["--to", "2001-01-01"], ConfigError, "ends before it begins"),
        (["--from", "yesterday"], ConfigError, "no time; write"),
    ],
)
def test_what_cannot_be_asked_is_refused(server: Server, words: list[str], error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        printed("backtest", *server.span, *words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "either --prometheus URL or --access-log FILE"),
        (["--prometheus", "http://x", "--access-log", "y"], "either --prometheus URL or --access-log FILE"),
        (["--access-log", "y", "--prefill", "1"], "both --prefill and --decode"),
        (["--access-log", "y", "--step-s", "30"], "about --prometheus"),
        (["--prometheus", "ftp://x"], "is no URL"),
        (["--prometheus", "http://u:secret@x"], "leave user and password out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        printed("backtest", *words)
