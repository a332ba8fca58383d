"""Console blocks of a page: the commands that it shows, and whether they print what it shows.

    python -m tests.consoles README.md              run those of pdplugins again, write their figures into the page
    python -m tests.consoles README.md PRINTED      compare what `dynamo serve --trace` printed with the page

A line of the page must be printed, in the same order, and its numbers must agree within `TOLERANCE`; `…` stands for
anything, and lines may be left out. The stars of a comparison, which mark the best, may move.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOLERANCE = 0.01
"""Share of a number. The simulator gives the same figures everywhere; a rounding may fall on either side."""
LIVE_POINTS = 30.0
"""Points of SLO attainment by which two runs on a live stack may differ: engines start when the machine lets them."""
REPLAYED = re.compile(
    r"Replayed (?P<requests>\d+) requests in .*?, (?P<failed>\d+) failed; SLO attainment (?P<attainment>[\d.]+)%"
)
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Shown:
    """A command, and the lines that a page shows below it."""

    command: str
    lines: tuple[str, ...]


def consoles(page: str) -> Iterator[Shown]:
    """Yield every command of the console blocks of a page."""
    for block in BLOCK.findall(page):
        command, lines = "", list[str]()
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                if command:
                    yield Shown(command, tuple(lines))
                command, lines = re.sub(r"\s+#.*", "", line[2:]), []
            elif line.strip():
                lines.append(line)
        if command:
            yield Shown(command, tuple(lines))


def run(command: str, folder: Path) -> list[str]:
    """Run a command of pdplugins in `folder`; return the lines that it prints."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def differences(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the lines of a page that a command does not print, each with what it prints instead."""
    found, left = [], iter(printed)
    for line in shown:
        for candidate in left:
            if same_words(line, candidate):
                if not close(line, candidate):
                    found.append(f"{line.strip()}\n  is {candidate.strip()}")
                break
        else:
            found.append(f"{line.strip()}\n  is not printed")
            left = iter(printed)
    return found


def same_words(shown: str, printed: str) -> bool:
    """Tell whether two lines are the same but for their numbers, spaces and stars; `…` matches anything."""
    return _match(shown, printed) is not None


def close(shown: str, printed: str) -> bool:
    """Tell whether the numbers of two lines with the same words agree."""
    found = _match(shown, printed)
    assert found is not None
    pairs = zip(NUMBER.findall(_plain(shown)), found.groups(), strict=True)
    return all(_near(float(a.replace(",", "")), float(b.replace(",", "")), _step(a)) for a, b in pairs)


def _near(shown: float, printed: float, step: float) -> bool:
    return abs(shown - printed) <= max(TOLERANCE * abs(shown), 1.01 * step)


def _step(number: str) -> float:
    """The last digit that is shown."""
    return 10.0 ** -len(number.partition(".")[2])


def _match(shown: str, printed: str) -> re.Match[str] | None:
    pattern = NUMBER.sub("\0", _plain(shown))
    pattern = re.escape(pattern).replace(re.escape("\0"), rf"({NUMBER.pattern})").replace("…", ".*")
    return re.fullmatch(pattern.replace(r"\ ", " "), _plain(printed))


def _plain(line: str) -> str:
    return " ".join(line.replace("*", " ").split())


def refreshed(page: str) -> str:
    """Return `page` with the numbers that its commands print now, where the words are the same."""
    with tempfile.TemporaryDirectory() as folder:
        for shown in consoles(page):
            if shown.command.startswith("pdplugins "):
                left = iter(run(shown.command, Path(folder)))
                for line in shown.lines:
                    now = next((candidate for candidate in left if same_words(line, candidate)), line)
                    if "…" not in line:
                        page = page.replace(f"\n{line}\n", f"\n{now.rstrip()}\n")
    return page


def differences_of_replay(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Compare the sums of two replays on a live stack: requests, failures, and attainment within `LIVE_POINTS`."""
    page, live = (next(filter(None, map(REPLAYED.search, lines)), None) for lines in (shown, printed))
    if page is None or live is None:
        return [f"no line of the {'page' if page is None else 'run'} says how many requests were replayed"]
    same = page["requests"] == live["requests"] and page["failed"] == live["failed"]
    near = abs(float(page["attainment"]) - float(live["attainment"])) <= LIVE_POINTS
    return [] if same and near else [f"{page[0]}\n  is {live[0]}"]


def main(name: str, *printed: str) -> None:
    path = ROOT / name
    page = path.read_text(encoding="utf-8")
    if not printed:
        path.write_text(refreshed(page), encoding="utf-8")
        return
    lines = [line for shown in consoles(page) for line in shown.lines]
    if found := differences_of_replay(lines, Path(printed[0]).read_text(encoding="utf-8").splitlines()):
        sys.exit(f"{name} shows a replay that comes out otherwise: {found[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
