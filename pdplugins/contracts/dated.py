"""Loads that are not of now: a host that fills this in says so to the policies that can do something about it."""

from __future__ import annotations

from typing import Protocol

from pdplugins.contracts.workers import LoadView


class DatedLoad(LoadView, Protocol):
    """A load of some time ago, of a host that asks its workers now and then and keeps no books of what it placed since.

    A policy may read `reported_s` of any load, and takes one that has none as a load of now.
    """

    @property
    def reported_s(self) -> float | None:
        """Time that the load is of, by the clock of `now_s`; None for now."""
        ...
