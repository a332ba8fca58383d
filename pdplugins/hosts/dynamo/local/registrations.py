"""Workers in Dynamo's file-based discovery: files ``<bucket>/<endpoint>%2F<instance id>`` under one folder.

Dynamo notices a worker that died without saying goodbye only when its files have not been touched for some seconds,
and sends it requests until then. The launcher knows at once, and takes the files away.
"""

from __future__ import annotations

import json
from pathlib import Path


class Registrations:
    """The discovery folder of one stack.

    Workers are told apart by the routing id that the launcher gives each (``DYN_STABLE_ROUTING_ID``) and that Dynamo
    publishes with the worker's model card.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}

    def serving(self) -> dict[str, str]:
        """Return the instance id of every worker that takes requests, by the worker's name."""
        endpoints = {_instance(path) for path in self._bucket("instances")}
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
                    path.unlink(missing_ok=True)

    def _bucket(self, name: str) -> list[Path]:
        try:
            return list((self._folder / "v1" / name).iterdir())
        except FileNotFoundError:
            return []


def _instance(path: Path) -> str:
    return path.name.rpartition("%2F")[2]


def _name(card: Path) -> str | None:
    """Return the routing id in a model card; None while the card is being written."""
    try:
        return str(json.loads(card.read_text())["card_json"]["runtime_config"]["stable_routing_id"])
    except (OSError, ValueError, KeyError):
        return None
