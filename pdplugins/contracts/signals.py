"""Named numbers that the parts of one policy tell each other, also where they run in different processes.

A part that tells is a `TellsSignals`, one that listens a `HearsSignals`; a part may be both. Hosts carry the signals:
within one process at once, between processes with a delay and only while they are fresh. A policy must do without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

Signals = Mapping[str, float]
"""Name to number. Names carry their unit (``forecast_rate``, ``pool_prefill``, ``tpot_s``)."""


@runtime_checkable
class TellsSignals(Protocol):
    """A part with numbers for the other parts; hosts also show them live and export them as metrics."""

    @property
    def signals(self) -> Signals:
        """The numbers behind the last decision."""
        ...


@runtime_checkable
class HearsSignals(Protocol):
    """A part that uses numbers of the other parts."""

    def on_signals(self, signals: Signals, now_s: float) -> None:
        """Take in what the other parts said last. Signals that have gone stale are left out."""
        ...
