"""A generator from the client statistics of ServeGen (Xiang et al., *ServeGen*, 2025; data of alibaba/ServeGen).

Production traffic is the sum of clients, each with its own rate, burstiness and lengths. Each client has two files.
``chunk-N-trace.csv`` has no header, and a row ``start_s,rate,cv,family,shape,scale`` for every 600 s, with gaps of a
Gamma or a Weibull distribution. ``chunk-N-dataset.json`` has a histogram of prompt and output lengths for every
21,600 s. The meaning of shape and scale is inferred from the data: their product is the mean gap.
"""

from __future__ import annotations

import json
import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pdplugins.errors import TraceError
from pdplugins.files import is_folder
from pdplugins.workloads import rows
from pdplugins.workloads.arrivals import renewal
from pdplugins.workloads.draws import Floats
from pdplugins.workloads.trace import TraceRequest

WINDOW_S = 600.0
TRACES = "chunk-*-trace.csv"
"""Names of the files with the rates of clients."""
MOST_REQUESTS = 10**7
"""Requests of all clients together; more take too much memory and time."""
LOWEST_RATE = 1e-12
"""Requests per second below which a client has none: it would send one in thirty thousand years."""
MOST_CHARACTERS = 2**24
"""Of one file of histograms, five times those of the largest that is published."""


class ServeGenSettings(BaseModel):
    """Selects a part of the two weeks of data, and its clients and rate."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    seed: int = Field(0, ge=0, description="same seed, same bytes")
    start_s: float = Field(0.0, ge=0, description="where in the data to start")
    duration_s: float = Field(1800.0, gt=0, description="how long")
    scale: float = Field(0.05, gt=0, description="share of each client's rate to generate")
    clients: int | None = Field(None, ge=1, description="only the busiest so many clients of that time")


Histogram = tuple[NDArray[np.int64], Floats]
"""Lengths, and the share of those up to each of them in their order."""


@dataclass(frozen=True, slots=True)
class Window:
    """The arrivals of one client during 600 s."""

    start_s: float
    rate: float
    family: str
    shape: float

    def times_s(self, rng: np.random.Generator, rate: float) -> Floats:
        """Draw arrivals with this window's distribution and a mean of `rate` per second.

        There are at most one more than all clients may have together: a shape near 0 makes many of a low rate.
        """

        def gaps_s(count: int) -> Floats:
            if self.family == "Weibull":
                return rng.weibull(self.shape, count) / (rate * math.gamma(1 + 1 / self.shape))
            return rng.gamma(self.shape, 1 / (rate * self.shape), count)

        return self.start_s + renewal(gaps_s, rate, WINDOW_S, MOST_REQUESTS + 1)


def servegen(settings: ServeGenSettings, path: Path) -> Iterator[TraceRequest]:
    """Generate requests of the clients in the folder `path`, or of one client if `path` is its ``chunk-N-trace.csv``.

    Prompt and output lengths are drawn independently from the histograms, because the data has no joint distribution.
    """
    clients = []
    for file in files_of(path):
        windows = [window for window in _windows(file) if _overlaps(settings, window)]
        clients.append((sum(window.rate for window in windows), file, windows))
    clients.sort(key=lambda client: (-client[0], client[1].name))
    chosen = clients[: settings.clients]
    _check_size(path, WINDOW_S * settings.scale * sum(rate for rate, _, _ in chosen))
    drawn = 0
    for number, (_, file, windows) in enumerate(chosen):
        if not windows:
            continue
        rng = np.random.default_rng((settings.seed, number))
        lengths = Lengths(lengths_of(file))
        for window in windows:
            times_s = window.times_s(rng, window.rate * settings.scale)
            drawn += len(times_s)
            _check_size(path, drawn)
            yield from _requests(settings, window, times_s, lengths, rng)


def is_servegen(path: Path) -> bool:
    """Return whether `path` is such a folder or file."""
    return path.match(TRACES) or (is_folder(path) and any(path.glob(TRACES)))


def files_of(path: Path) -> list[Path]:
    """Return the files of such a folder, or the file itself. Raises TraceError where there are none."""
    if not is_folder(path):
        return [path]
    if found := sorted(path.glob(TRACES)):
        return found
    raise TraceError(f"{path}: no {TRACES} in this folder; {rows.PUBLISHED}")


def _check_size(path: Path, requests: float) -> None:
    if requests > MOST_REQUESTS:
        raise TraceError(
            f"{path}: its rates ask for {requests:.3g} requests or more, and {MOST_REQUESTS:,} are the most; lower "
            "scale, duration_s or clients"
        )


def _overlaps(settings: ServeGenSettings, window: Window) -> bool:
    inside = settings.start_s - WINDOW_S < window.start_s < settings.start_s + settings.duration_s
    return inside and window.rate * settings.scale >= LOWEST_RATE


def _windows(path: Path) -> Iterator[Window]:
    for number, line in rows.lines(path):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6:
            raise rows.malformed(path, number, str(len(cells)), line.strip(), "a row of six columns")
        start_s, rate = (rows.real(path, number, str(1 + index), cells[index]) for index in (0, 1))
        if rate > 0:
            if cells[3] not in {"Gamma", "Weibull"}:
                raise rows.malformed(path, number, "4", cells[3], "Gamma or Weibull")
            # With a shape below 0.01 nearly all gaps are 0, and one is longer than any window.
            yield Window(start_s, rate, cells[3], max(rows.real(path, number, "5", cells[4]), 0.01))


def _requests(
    settings: ServeGenSettings, window: Window, times_s: Floats, lengths: Lengths, rng: np.random.Generator
) -> Iterator[TraceRequest]:
    end_s = settings.start_s + settings.duration_s
    times_s = times_s[(times_s >= settings.start_s) & (times_s < end_s)]
    isl, osl = (lengths.draw(column, window.start_s, rng, len(times_s)) for column in Lengths.COLUMNS)
    for at_s, prompt, answer in zip(times_s.tolist(), isl, osl, strict=True):
        yield TraceRequest(at_s, prompt, answer)


def lengths_of(trace: Path) -> Path:
    """Return the file with the lengths of the requests whose arrivals are in the file `trace`."""
    return trace.parent / trace.name.replace("-trace.csv", "-dataset.json")


def _is_empty(row: Any, column: str) -> bool:
    """Tell whether a window has an empty histogram: most of some files have, and each would be looked for in all."""
    text = row.get(column) if isinstance(row, dict) else None
    return isinstance(text, str) and text[:1] + text[-1:] == "{}" and not text[1:-1].strip()


class Lengths:
    """The histograms of one client."""

    COLUMNS = ("input_tokens", "output_tokens")

    def __init__(self, path: Path) -> None:
        self._path = path
        text = rows.whole(path, MOST_CHARACTERS)
        try:
            data = json.loads(text)
            self._by_start = {rows.real(path, 1, "1", start): row for start, row in data.items()}
        except (ValueError, AttributeError, RecursionError):
            raise TraceError(f"{path}: line 1, column 1: not a JSON object of windows; is it cut off?") from None
        self._starts = {
            column: sorted(start_s for start_s, row in self._by_start.items() if not _is_empty(row, column))
            for column in self.COLUMNS
        }
        """Starts of the windows, less those whose histogram is known to be empty."""
        self._read: dict[tuple[str, float], Histogram] = {}

    def draw(self, column: str, at_s: float, rng: np.random.Generator, count: int) -> list[int]:
        """Draw lengths from the non-empty histogram that is nearest in time."""
        values, up_to = self._histogram(column, at_s)
        drawn: list[int] = values[up_to.searchsorted(rng.random(count), side="right")].tolist()
        return drawn

    def _histogram(self, column: str, at_s: float) -> Histogram:
        starts = self._starts[column]
        while starts:
            after = bisect(starts, at_s)
            start_s = min(starts[max(after - 1, 0) : after + 1], key=lambda start_s: (abs(start_s - at_s), start_s))
            if (column, start_s) not in self._read:
                self._read[column, start_s] = self._parse(column, start_s)
            if len((found := self._read[column, start_s])[0]):
                return found
            starts.remove(start_s)
        raise TraceError(f"{self._path}: no length in any {column}; drop this client's two files")

    def _parse(self, column: str, start_s: float) -> Histogram:
        try:
            text = self._by_start[start_s][column].strip()
            pairs = [pair.split(":") for pair in text.removeprefix("{").removesuffix("}").split(",") if pair.strip()]
            found = {int(length): float(share) for length, share in pairs}
            sound = text[:1] + text[-1:] == "{}" and all(0 <= share <= rows.LARGEST for share in found.values())
        except (ValueError, KeyError, TypeError, AttributeError):
            sound = False
        sound = sound and all(0 <= length <= rows.MAX_TOKENS for length in found)
        if not sound or (found and not any(found.values())):
            raise TraceError(
                f"{self._path}: window {start_s:.0f}, column {column}: not a histogram {{length: share}} of lengths "
                f"from 0 to {rows.MAX_TOKENS} and shares from 0 to {rows.LARGEST:g}, not all 0; drop this client's two "
                "files"
            )
        shares = np.array(list(found.values()), dtype=np.float64)
        up_to = (shares / shares.sum()).cumsum() if found else shares
        return np.array([max(length, 1) for length in found], dtype=np.int64), up_to / up_to[-1:]
