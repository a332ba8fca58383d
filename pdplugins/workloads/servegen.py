"""A generator from the client statistics of ServeGen (Xiang et al., *ServeGen*, 2025; data of alibaba/ServeGen).

Production traffic is the sum of clients, each with its own rate, burstiness and lengths. Each client has two files.
``chunk-N-trace.csv`` has no header, and a row ``start_s,rate,cv,family,shape,scale`` for every 600 s, with gaps of a
Gamma or a Weibull distribution. ``chunk-N-dataset.json`` has a histogram of prompt and output lengths for every
21,600 s. The meaning of shape and scale is inferred from the data: their product is the mean gap.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pdplugins.errors import TraceError
from pdplugins.workloads import rows
from pdplugins.workloads.arrivals import renewal
from pdplugins.workloads.draws import Floats
from pdplugins.workloads.trace import TraceRequest

WINDOW_S = 600.0


class ServeGenSettings(BaseModel):
    """Selects a part of the two weeks of data, and its clients and rate."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    seed: int = Field(0, ge=0, description="same seed, same bytes")
    start_s: float = Field(0.0, ge=0, description="where in the data to start")
    duration_s: float = Field(1800.0, gt=0, description="how long")
    scale: float = Field(0.05, gt=0, description="share of each client's rate to generate")
    clients: int | None = Field(None, ge=1, description="only the busiest so many clients of that time")


@dataclass(frozen=True, slots=True)
class Window:
    """The arrivals of one client during 600 s."""

    start_s: float
    rate: float
    family: str
    shape: float

    def times_s(self, rng: np.random.Generator, rate: float) -> Floats:
        """Draw arrivals with this window's distribution and a mean of `rate` per second."""

        def gaps_s(count: int) -> Floats:
            if self.family == "Weibull":
                return rng.weibull(self.shape, count) / (rate * math.gamma(1 + 1 / self.shape))
            return rng.gamma(self.shape, 1 / (rate * self.shape), count)

        return self.start_s + renewal(gaps_s, rate, WINDOW_S, math.inf)


def servegen(settings: ServeGenSettings, path: Path) -> Iterator[TraceRequest]:
    """Generate requests of the clients in the folder `path`, or of one client if `path` is its ``chunk-N-trace.csv``.

    Prompt and output lengths are drawn independently from the histograms, because the data has no joint distribution.
    """
    clients = []
    for file in _files(path):
        windows = [window for window in _windows(file) if _overlaps(settings, window)]
        clients.append((sum(window.rate for window in windows), file, windows))
    clients.sort(key=lambda client: (-client[0], client[1].name))
    for number, (rate, file, windows) in enumerate(clients[: settings.clients]):
        if rate > 0:
            yield from _client(settings, file, windows, np.random.default_rng((settings.seed, number)))


def is_servegen(path: Path) -> bool:
    """Return whether `path` is such a folder or file."""
    return path.name.endswith("-trace.csv") or (path.is_dir() and any(path.glob("chunk-*-trace.csv")))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if found := sorted(path.glob("chunk-*-trace.csv")):
        return found
    raise TraceError(f"{path}: no chunk-*-trace.csv in this folder; {rows.PUBLISHED}")


def _overlaps(settings: ServeGenSettings, window: Window) -> bool:
    return settings.start_s - WINDOW_S < window.start_s < settings.start_s + settings.duration_s


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


def _client(
    settings: ServeGenSettings, file: Path, windows: list[Window], rng: np.random.Generator
) -> Iterator[TraceRequest]:
    lengths = Lengths(file.with_name(file.name.replace("-trace.csv", "-dataset.json")))
    end_s = settings.start_s + settings.duration_s
    for window in windows:
        times = window.times_s(rng, window.rate * settings.scale)
        times = times[(times >= settings.start_s) & (times < end_s)]
        isl, osl = (lengths.draw(column, window.start_s, rng, len(times)) for column in Lengths.COLUMNS)
        for at_s, prompt, answer in zip(times.tolist(), isl, osl, strict=True):
            yield TraceRequest(at_s, prompt, answer)


class Lengths:
    """The histograms of one client."""

    COLUMNS = ("input_tokens", "output_tokens")

    def __init__(self, path: Path) -> None:
        self._path = path
        text = "".join(line for _, line in rows.lines(path))
        try:
            data: dict[str, dict[str, str]] = json.loads(text)
            self._by_start = {float(start): row for start, row in data.items()}
        except (ValueError, AttributeError):
            raise TraceError(f"{path}: line 1, column 1: not a JSON object of windows; is it cut off?") from None
        self._read: dict[tuple[str, float], Any] = {}

    def draw(self, column: str, at_s: float, rng: np.random.Generator, count: int) -> list[int]:
        """Draw lengths from the non-empty histogram that is nearest in time."""
        values, shares = self._histogram(column, at_s)
        drawn: list[int] = rng.choice(values, size=count, p=shares).tolist()
        return drawn

    def _histogram(self, column: str, at_s: float) -> tuple[Any, Any]:
        """Return lengths and their shares."""
        for start_s in sorted(self._by_start, key=lambda start_s: (abs(start_s - at_s), start_s)):
            if (column, start_s) not in self._read:
                self._read[column, start_s] = self._parse(column, start_s)
            if len((found := self._read[column, start_s])[0]):
                return found[0], found[1]
        raise TraceError(f"{self._path}: no length in any {column}; drop this client's two files")

    def _parse(self, column: str, start_s: float) -> tuple[Any, Any]:
        try:
            found: dict[int, float] = ast.literal_eval(self._by_start[start_s][column])
            values = np.maximum(np.array(list(found), dtype=np.int64), 1)
            shares = np.array(list(found.values()), dtype=np.float64)
        except (ValueError, SyntaxError, KeyError, TypeError, AttributeError):
            raise TraceError(
                f"{self._path}: window {start_s:.0f}, column {column}: not a histogram {{length: share}}"
            ) from None
        return values, shares / shares.sum() if len(shares) else shares
