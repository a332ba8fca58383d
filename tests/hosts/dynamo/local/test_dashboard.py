"""What the dashboard of a stack says of it, from what its screen shows."""

from __future__ import annotations

from dataclasses import replace

from pdplugins.hosts.dynamo.local.dashboard import Board
from pdplugins.hosts.dynamo.local.pulse import Pulse
from pdplugins.hosts.dynamo.local.status import PoolStatus, Snapshot
from pdplugins.report.address import Address
from pdplugins.report.layout import main
from pdplugins.results import Scaling
from pdplugins.types import Slo
from tests.hosts.dynamo.local.made import options

SNAPSHOT = Snapshot(
    elapsed_s=75.0,
    prefill=PoolStatus(wanted=3, ready=2, starting=1, draining=0),
    decode=PoolStatus(wanted=1, ready=1, starting=0, draining=1),
    gpus_held=7,
    gpu_budget=8,
    gpu_hours=0.125,
    pulse=Pulse(in_flight=12, ttft_s=0.25, tpot_s=0.031, ttft_attainment=0.99, tpot_attainment=0.5, queued=4, errors=2),
    planner="running",
    reason="3P1D for 4.00 req/s",
    signals={"forecast_rate": 12.0},
    workers=({"name": "prefill-1", "pid": 4711, "phase": "ready"},),
)


def board() -> Board:
    return Board(options(), Slo(2.0, 0.08), Address("127.0.0.1", 0))


def test_it_shows_what_the_screen_shows_attainment_first() -> None:
    one = board()
    one.show(SNAPSHOT)
    text = main(one.live.page())
    order = ["<h1>dopd: about 99.0%", "12 requests/s", "7 of 8", "Inside the objectives", "Requests that wait"]
    order += ["Time to first token", "Workers that serve", "3P1D for 4.00 req/s", "prefill-1", "dynamo serve"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_every_decision_is_there_once_with_its_reason() -> None:
    one = board()
    for second in range(10):
        one.show(replace(SNAPSHOT, elapsed_s=75.0 + second))
    change = Scaling(at_s=86.0, prefill=4, decode=2, reason="a queue of 170")
    for second in range(3):
        one.show(replace(SNAPSHOT, elapsed_s=87.0 + second, reason="a queue of 170", changed=change))
    one.show(replace(SNAPSHOT, elapsed_s=95.0, reason="4P2D still fits", changed=change))
    text = main(one.live.page())
    for words in ("keeps 3P1D", ">to 4P2D<", ">3P1D for 4.00 req/s<", ">a queue of 170<", ">4P2D still fits<"):
        assert text.count(words) == (2 if words == "keeps 3P1D" else 1)
    assert text.index("4P2D still fits") < text.index(">a queue of 170<") < text.index(">3P1D for 4.00 req/s<")


def test_a_replay_has_an_exact_attainment() -> None:
    one = board()
    one.show(replace(SNAPSHOT, total=400, finished=100, failed=1, attainment=0.985))
    assert "98.5% of requests within TTFT 2 s and TPOT 0.08 s" in main(one.live.page())
