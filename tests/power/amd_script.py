"""What test_amd.py asks of the AMD backend, in a process of its own: a process can load one amdsmi only."""

from __future__ import annotations

import json
import sys

from pdplugins.power.amd import AmdBackend
from pdplugins.types import DeviceError


def ask(backend: AmdBackend, uuids: list[str], words: list[str]) -> object:
    """Do what one line of the test says."""
    match words:
        case ["devices"]:
            return [[d.uuid, d.name, d.min_w, d.max_w, d.default_w] for d in backend.devices()]
        case ["unreadable"]:
            return {uuid: str(error) for uuid, error in backend.unreadable.items()}
        case ["read", index]:
            reading = backend.read(uuids[int(index)])
            return [reading.draw_w, reading.cap_w, reading.energy_j]
        case ["set", index, watts]:
            return backend.set_cap_w(uuids[int(index)], float(watts))
        case _:
            raise ValueError(words)


def main() -> None:
    """Answer line by line."""
    backend = AmdBackend()
    uuids = [device.uuid for device in backend.devices()]
    for line in sys.stdin:
        try:
            answer: object = {"said": ask(backend, uuids, line.split())}
        except DeviceError as error:
            answer = {"fault": error.fault, "uuid": error.uuid, "text": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
