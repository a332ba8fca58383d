"""Make pdplugins-slim from a wheel of pdplugins: the same files, without the requirements of two extras.

    python tools/slim_wheel.py dist/pdplugins-0.1.0-cp311-cp311-linux_x86_64.whl

An extra adds requirements and cannot take any away, and `pip install pdplugins` must be all that `dynamo serve` needs.
So what runs without Dynamo is a distribution of its own. The extras stay: `pdplugins-slim[dynamo]`.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

NAME, SLIM = "pdplugins", "pdplugins-slim"
LEFT_OUT = ("analysis", "dynamo")


def slim(wheel: Path) -> Path:
    """Write the slim wheel beside `wheel`; return its path."""
    made = wheel.with_name(wheel.name.replace(f"{NAME}-", f"{SLIM.replace('-', '_')}-", 1))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        lines = []
        for entry in source.infolist():
            name, data = _renamed(entry.filename), source.read(entry)
            if name.endswith(".dist-info/RECORD"):
                record = entry, name
                continue
            if name.endswith(".dist-info/METADATA"):
                data = metadata(data.decode("utf-8")).encode("utf-8")
            entry.filename = name
            target.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        record[0].filename = record[1]
        target.writestr(record[0], "".join([*lines, f"{record[1]},,\n"]))
    return made


def metadata(text: str) -> str:
    """Return the metadata of the slim distribution."""
    head, blank, description = text.partition("\n\n")
    lines = head.splitlines()
    dropped = set(_requirements(lines))
    kept = [line for line in lines if line.removeprefix("Requires-Dist: ") not in dropped]
    kept = [f"Name: {SLIM}" if line == f"Name: {NAME}" else line for line in kept]
    return "\n".join(kept) + blank + description


def _requirements(lines: list[str]) -> Iterator[str]:
    """Yield the requirements of the extras that are left out, as they stand without the extra."""
    for line in lines:
        requirement, _, marker = line.removeprefix("Requires-Dist: ").partition("; ")
        if any(marker == f"extra == '{extra}'" for extra in LEFT_OUT):
            yield requirement


def _renamed(name: str) -> str:
    folder, _, rest = name.partition("/")
    return f"{folder.replace(NAME, SLIM.replace('-', '_'), 1)}/{rest}" if folder.endswith(".dist-info") else name


if __name__ == "__main__":
    sys.stdout.write(f"{slim(Path(sys.argv[1]))}\n")
