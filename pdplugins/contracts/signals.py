"""Named numbers that the parts of one policy send each other, even from different processes.

A part that sends is a `TellsSignals`, and a part that listens is a `HearsSignals`. A part may be both. Hosts deliver
the signals: at once within one process, and with a delay between processes. Stale signals are dropped, so a policy must
also work without any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

Signals = Mapping[str, float]
"""Number by name, such as ``forecast_rate``, ``pool_prefill`` or ``tpot_s``. A name ends in the unit, if any."""


@runtime_checkable
class TellsSignals(Protocol):
    """A part with numbers for the other parts. Hosts also show them live and export them as metrics."""

    @property
    def signals(self) -> Signals:
        """The numbers behind the last decision."""
        ...


@runtime_checkable
class HearsSignals(Protocol):
    """A part that uses numbers of the other parts."""

    def on_signals(self, signals: Signals, now_s: float) -> None:
        """Take in the latest signals of the other parts. Stale signals are left out."""
        ...
