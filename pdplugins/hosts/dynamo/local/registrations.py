"""Workers in Dynamo's file-based discovery: files ``<bucket>/<endpoint>%2F<instance id>`` under one folder.

A worker touches its files every few seconds. Dynamo notices a worker that died without saying goodbye, or that hangs,
only when it has not done so for ten seconds, and sends it requests until then. The launcher knows at once of those that
died, and takes the files away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

STALE_S = 30.0
"""Time without touching its files after which a worker hangs. Dynamo removes them after ten seconds, where any of its
processes still does."""


class Registrations:
    """The discovery folder of one stack.

    Workers are told apart by the routing id that the launcher gives each (``DYN_STABLE_ROUTING_ID``) and that Dynamo
    publishes with the worker's model card.

    :param clock: seconds that pass, whatever someone does to the time of day.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._names: dict[str, str] = {}
        self._touched: dict[Path, tuple[int, float]] = {}
        """By file, when it was last touched: its time stamp, and when we first saw that."""

    def serving(self) -> dict[str, str]:
        """Return the instance id of every worker that takes requests, by the worker's name."""
        endpoints = {_instance(path) for path in self._fresh(self._bucket("instances"))}
        cards = {_instance(path): path for path in self._bucket("mdc")}
        self._names = {instance: name for instance, name in self._names.items() if instance in cards}
        for instance, path in cards.items():
            if instance not in self._names and (name := _name(path)):
                self._names[instance] = name
        return {name: instance for instance, name in self._names.items() if instance in endpoints}

    def remove(self, instance: str) -> None:
        """Take away what a worker that has died left behind, so that nobody sends it anything."""
        for bucket in ("instances", "mdc"):
            for path in self._bucket(bucket):
                if _instance(path) == instance:
                    with suppress(OSError):
                        path.unlink()

    def _bucket(self, name: str) -> list[Path]:
        try:
            return list((self._folder / "v1" / name).iterdir())
        except OSError:
            return []

    def _fresh(self, paths: list[Path]) -> list[Path]:
        """Return those that were touched not long ago."""
        now_s = self._clock()
        touched = {}
        for path in paths:
            before = self._touched.get(path)
            stamp = _stamp(path)
            touched[path] = before if before is not None and before[0] == stamp else (stamp, now_s)
        self._touched = touched
        return [path for path in paths if now_s - touched[path][1] < STALE_S]


def _instance(path: Path) -> str:
    return path.name.rpartition("%2F")[2]


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # it has just gone
        return 0


def _name(card: Path) -> str | None:
    """Return the routing id in a model card; None while the card is being written."""
    try:
        return str(json.loads(card.read_text())["card_json"]["runtime_config"]["stable_routing_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
