"""The three ways to show what goes on."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.dynamo.local.options import Status
from pdplugins.hosts.dynamo.local.pulse import Pulse
from pdplugins.hosts.dynamo.local.stack import Stack
from pdplugins.hosts.dynamo.local.status import PoolStatus, Snapshot, make_view
from pdplugins.results import Scaling
from pdplugins.types import Slo

SLO = Slo(2.0, 0.08)
SNAPSHOT = Snapshot(
    elapsed_s=75.0,
    prefill=PoolStatus(wanted=3, ready=2, starting=1, draining=0),
    decode=PoolStatus(wanted=1, ready=1, starting=0, draining=1),
    gpus_held=7,
    gpu_budget=8,
    gpu_hours=0.125,
    pulse=Pulse(
        in_flight=12,
        ttft_s=0.25,
        tpot_s=0.031,
        ttft_attainment=0.99,
        tpot_attainment=0.5,
        requests_per_s=3.37,
        queued=4,
        errors=2,
    ),
    planner="running",
    reason="3P1D for 4.00 req/s",
    signals={"forecast_isl_tokens": 1234.0, "forecast_failures": 0.0},
    changed=Scaling(at_s=63.0, prefill=3, decode=1, reason="a queue of 170"),
    total=400,
    finished=100,
    failed=1,
    attainment=0.985,
)


@pytest.mark.parametrize("status", ["rich", "plain"])
def test_people_see_everything_that_matters(status: Status) -> None:
    """Workers per role, decision and reason, latency, attainment, requests, GPU-hours."""
    out = io.StringIO()
    view = make_view(status, SLO, out)
    view.say("ready", "Serving [now].")
    view.show(SNAPSHOT)
    view.close()
    text = " ".join(out.getvalue().split())
    for part in ("Serving [now].", "2/3 ready (1 starting)", "1/1 ready (1 draining)", "3P1D for 4.00 req/s", "98.5%"):
        assert part in text
    for part in ("TTFT 250 ms", "TPOT 31 ms", "100/400 finished, 1 failed", "12 in flight", "0.125 GPU-h"):
        assert part in text


def test_brackets_of_a_policy_stand_as_they_are() -> None:
    """Rich would take them for markup, and fail at what looks like the end of some."""
    said = "moved [prefill] x, bad file [/tmp/x]"
    snapshot = replace(SNAPSHOT, planner=said, reason=said, changed=Scaling(at_s=1, prefill=1, decode=1, reason=said))
    out = io.StringIO()
    view = make_view("rich", SLO, out)
    view.show(snapshot)
    view.close()
    assert " ".join(out.getvalue().split()).count(said) == 3


def test_the_screen_shows_the_forecast() -> None:
    """What the planner expects stands beside what it decided."""
    out = io.StringIO()
    view = make_view("rich", SLO, out)
    view.show(SNAPSHOT)
    view.close()
    assert "1234 tokens in" in out.getvalue()
    assert "failures" not in out.getvalue()


def test_the_screen_is_an_operators() -> None:
    """Load, queue, errors, and the last change with its reason."""
    out = io.StringIO()
    view = make_view("rich", SLO, out)
    view.show(SNAPSHOT)
    view.close()
    text = " ".join(out.getvalue().split())
    assert "3.4 requests/s, 100/400 finished, 1 failed, 12 in flight, 4 queued, 2 errors" in text
    assert "last change 3P1D, 12 s ago: a queue of 170" in text
    assert replace(SNAPSHOT, changed=None).last_change() == "none"


def test_without_a_replay_attainment_is_said_to_be_an_estimate() -> None:
    """Histograms tell shares of tokens, not of requests."""
    text = replace(SNAPSHOT, total=None).slo(SLO)
    assert text == "about 99.0% within TTFT 2 s, 50.0% within TPOT 0.08 s"


def test_a_log_is_not_flooded() -> None:
    """Plain text has a line when the workers change, and else one in ten seconds, or a minute when idle."""
    out = io.StringIO()
    view = make_view("plain", SLO, out)
    for second in range(21):
        view.show(replace(SNAPSHOT, elapsed_s=float(second)))
    assert len(out.getvalue().splitlines()) == 3
    view.show(replace(SNAPSHOT, elapsed_s=20.5, prefill=PoolStatus(3, 3, 0, 0)))
    assert len(out.getvalue().splitlines()) == 4
    idle = replace(SNAPSHOT, prefill=PoolStatus(3, 3, 0, 0), pulse=Pulse(in_flight=0))
    for second in range(21, 90):
        view.show(replace(idle, elapsed_s=float(second)))
    assert len(out.getvalue().splitlines()) == 5


def test_programs_read_json_lines() -> None:
    """Each line is an object with its event."""
    out = io.StringIO()
    view = make_view("json-lines", SLO, out)
    view.say("ready", "Serving.", url="http://127.0.0.1:8000")
    view.show(SNAPSHOT)
    ready, status = map(json.loads, out.getvalue().splitlines())
    assert ready == {"event": "ready", "text": "Serving.", "url": "http://127.0.0.1:8000"}
    assert status["changed"] == {"at_s": 63.0, "prefill": 3, "decode": 1, "reason": "a queue of 170"}
    assert (status["event"], status["prefill"]["wanted"], status["pulse"]["in_flight"]) == ("status", 3, 12)


def test_a_status_that_cannot_be_shown_is_logged_once_and_nothing_ends(caplog: pytest.LogCaptureFixture) -> None:
    shown: list[Snapshot] = []
    fails = [True, True, False, True]

    def show(snapshot: Snapshot) -> None:
        if fails.pop(0):
            raise ValueError("a terminal of its own kind")
        shown.append(snapshot)

    stack: Any = SimpleNamespace(
        _load=None, _board=None, _unshown=None, _snapshot=lambda: SNAPSHOT, _view=SimpleNamespace(show=show)
    )
    for _ in range(4):
        Stack._show(stack)
    assert shown == [SNAPSHOT]
    assert caplog.text.count("the status cannot be shown") == 2, "again after it could be shown in between"
