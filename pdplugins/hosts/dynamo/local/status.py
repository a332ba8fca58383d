"""Shows what goes on: a live screen on a terminal, lines in a log, or JSON lines for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

from pydantic import BaseModel
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pdplugins.contracts.request import Slo
from pdplugins.hosts.dynamo.local.options import Status
from pdplugins.hosts.dynamo.local.pulse import EVERY_S, WINDOW, Pulse
from pdplugins.results import Scaling

QUIET_S = 10.0
"""In plain text, a line comes when the workers change, and at least so often while there are requests."""
IDLE_S = 60.0
"""And so often while there are none."""
PULSE_WINDOW_S = WINDOW * EVERY_S
FORECAST = {
    "forecast_rate": "{:.3g} requests/s",
    "forecast_isl_tokens": "{:.0f} tokens in",
    "forecast_osl_tokens": "{:.0f} tokens out",
    "forecast_concurrency": "{:.3g} at once",
}
"""Signals of planners that say what they expect, in words."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The workers of one role."""

    wanted: int
    ready: int
    starting: int
    draining: int

    def __str__(self) -> str:
        more = [
            f"{count} {what}" for count, what in ((self.starting, "starting"), (self.draining, "draining")) if count
        ]
        return f"{self.ready}/{self.wanted} ready" + (f" ({', '.join(more)})" if more else "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is shown, at one moment."""

    elapsed_s: float
    prefill: PoolStatus
    decode: PoolStatus
    gpus_held: int
    gpu_budget: int
    gpu_hours: float
    pulse: Pulse
    planner: str
    """What the planner does: starting, running, or why it failed."""
    reason: str = ""
    signals: Mapping[str, float] = field(default_factory=dict)
    total: int | None = None
    """Requests of the replay; None without one."""
    finished: int = 0
    failed: int = 0
    attainment: float | None = None
    """Share of the replay's finished requests inside both objectives."""
    workers: tuple[Mapping[str, Any], ...] = ()
    changed: Scaling | None = None
    """The last change of the pools; its time counts as `elapsed_s` does."""

    def load(self) -> str:
        """Say how much comes, how much is under way, and what went wrong."""
        pulse = self.pulse
        rate = "no requests yet" if pulse.requests_per_s is None else f"{pulse.requests_per_s:.1f} requests/s"
        queued = "" if pulse.queued is None else f", {pulse.queued} queued"
        return f"{rate}, {self.requests()}{queued}, {pulse.errors} errors"

    def forecast(self) -> str:
        """Say what the planner expects."""
        known = (form.format(self.signals[name]) for name, form in FORECAST.items() if name in self.signals)
        return ", ".join(known) or "none yet"

    def last_change(self) -> str:
        """Say what changed last, how long ago, and why."""
        if self.changed is None:
            return "none"
        ago_s = max(self.elapsed_s - self.changed.at_s, 0.0)
        return f"{self.changed.prefill}P{self.changed.decode}D, {ago_s:.0f} s ago: {self.changed.reason}"

    def requests(self) -> str:
        """Say how far the requests are."""
        flight = f"{_number(self.pulse.in_flight)} in flight"
        if self.total is None:
            return flight
        return f"{self.finished}/{self.total} finished, {self.failed} failed, {flight}"

    def slo(self, slo: Slo) -> str:
        """Say how the objectives are met: exactly in a replay, else as far as the frontend's histograms tell."""
        if self.total is not None:
            return f"{_percent(self.attainment)} of requests within TTFT {slo.ttft_s:g} s and TPOT {slo.tpot_s:g} s"
        return (
            f"about {_percent(self.pulse.ttft_attainment)} within TTFT {slo.ttft_s:g} s, "
            f"{_percent(self.pulse.tpot_attainment)} within TPOT {slo.tpot_s:g} s"
        )


class View(Protocol):
    """One way to show it."""

    def say(self, event: str, text: str, **facts: object) -> None:
        """Tell something that happened: `text` to people, `event` and `facts` to programs."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Show how things are now. Called about once a second."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def make_view(status: Status, slo: Slo, out: TextIO = sys.stdout) -> View:
    """Return the view that was asked for."""
    if status == "json-lines":
        return JsonLines(out)
    return Screen(slo, out) if status == "rich" else Plain(slo, out)


class JsonLines:
    """One JSON object per line, each with an ``event``."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def say(self, event: str, text: str, **facts: object) -> None:
        """Write one event."""
        self._write({"event": event, "text": text, **facts})

    def show(self, snapshot: Snapshot) -> None:
        """Write the snapshot."""
        self._write({"event": "status", **asdict(snapshot)})

    def close(self) -> None:
        """Nothing to restore."""

    def _write(self, row: dict[str, Any]) -> None:
        self._out.write(json.dumps(row, default=_as_data) + "\n")
        self._out.flush()


class Plain:
    """Lines for a log: when the workers or the plan change, and now and then."""

    def __init__(self, slo: Slo, out: TextIO) -> None:
        self._slo = slo
        self._out = out
        self._shown: tuple[object, ...] = ()
        self._shown_s = -IDLE_S

    def say(self, event: str, text: str, **facts: object) -> None:
        """Write the text."""
        self._out.write(text + "\n")
        self._out.flush()

    def show(self, snapshot: Snapshot) -> None:
        """Write one line, if there is something new to say."""
        news = (snapshot.prefill, snapshot.decode)
        quiet_s = QUIET_S if snapshot.pulse.in_flight else IDLE_S
        if news == self._shown and snapshot.elapsed_s - self._shown_s < quiet_s:
            return
        self._shown, self._shown_s = news, snapshot.elapsed_s
        pulse = snapshot.pulse
        parts = (
            f"{snapshot.elapsed_s:6.0f} s",
            f"prefill {snapshot.prefill}",
            f"decode {snapshot.decode}",
            snapshot.load(),
            f"TTFT {_seconds(pulse.ttft_s)}",
            f"TPOT {_seconds(pulse.tpot_s)}",
            snapshot.slo(self._slo),
            f"{snapshot.gpu_hours:.3f} GPU-h",
            snapshot.reason or f"planner {snapshot.planner}",
        )
        self.say("status", " | ".join(parts))

    def close(self) -> None:
        """Nothing to restore."""


class Screen:
    """A table that stays in place, below the messages."""

    def __init__(self, slo: Slo, out: TextIO) -> None:
        self._slo = slo
        self._console = Console(file=out, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def say(self, event: str, text: str, **facts: object) -> None:
        """Print the text above the table."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the table."""
        self._live.update(Group(Text(), self._table(snapshot)), refresh=True)

    def close(self) -> None:
        """Stop redrawing; the last table stays."""
        self._live.stop()

    def _table(self, snapshot: Snapshot) -> Table:
        pulse = snapshot.pulse
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        minutes, seconds = divmod(int(snapshot.elapsed_s), 60)
        held = f"{snapshot.gpus_held} of {snapshot.gpu_budget} GPUs held, {snapshot.gpu_hours:.3f} GPU-hours"
        table.add_row("up", f"{minutes}:{seconds:02d}   {held}")
        table.add_row("load", snapshot.load())
        latency = f"TTFT {_seconds(pulse.ttft_s)}   TPOT {_seconds(pulse.tpot_s)}"
        table.add_row("latency", f"{latency}   (mean of the last {PULSE_WINDOW_S:g} s)")
        table.add_row("SLO", snapshot.slo(self._slo))
        table.add_row("prefill", str(snapshot.prefill))
        table.add_row("decode", str(snapshot.decode))
        table.add_row("planner", Text(snapshot.planner))  # as it is: a policy may write brackets
        table.add_row("forecast", snapshot.forecast())
        table.add_row("decision", Text(snapshot.reason or "none yet"))
        table.add_row("last change", Text(snapshot.last_change()))
        return table


def _as_data(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
