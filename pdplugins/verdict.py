"""What went wrong in a run, live or simulated: how many requests missed which objective, why, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from pdplugins import metrics
from pdplugins.contracts.request import Slo

TTFT_ERROR, TPOT_ERROR = 0.141, 0.063
"""Median error of the simulator's TTFT and TPOT against measured engines (docs/fidelity.md), as shares."""
SPELLS = 20
"""Parts of equal length in which a run is looked at, to say when it went wrong."""

Array = np.ndarray[Any, Any]


class Cause(StrEnum):
    """Why a request was outside its objectives."""

    FAILED = "failed"
    HOPELESS = "prompt too long for the TTFT objective on any worker"
    STARTING = "waited while workers started"
    WAITED = "waited for a prefill worker"
    CROWDED = "shared its decode steps with too many requests"
    MIXED = "decoded on a worker that computes prompts too"
    ALONE = "a decode step takes longer than the TPOT objective on any worker, even alone"


@dataclass(frozen=True, slots=True)
class Times:
    """The requests of a run, one entry for each. Failed requests have NaN times."""

    arrival_s: Array
    ttft_s: Array
    tpot_s: Array
    alone_s: Array | None = None
    """TTFT on an idle worker; None where no profile says it."""
    alone_tpot_s: Array | None = None
    """The same of the TPOT."""
    local: Array | None = None
    """Whether one worker did both phases; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Spell:
    """A part of a run."""

    start_s: float
    end_s: float
    missed: int
    total: int


@dataclass(frozen=True, slots=True)
class Missed:
    """The requests outside the objectives, each counted once."""

    total: int
    """All requests of the run."""
    ttft: int
    """Late first token, output tokens in time."""
    tpot: int
    """First token in time, output tokens late."""
    both: int
    failed: int
    causes: dict[str, int]
    """By `Cause`, the commonest first. A request that missed both objectives counts by its TTFT."""
    worst: Spell | None
    """The part of the run with the most misses; None without any."""
    low: float
    """SLO attainment if all times were longer by the simulator's median error."""
    high: float
    """SLO attainment if all times were shorter by it."""

    @property
    def count(self) -> int:
        """Return the number of requests outside the objectives."""
        return self.ttft + self.tpot + self.both + self.failed


def missed(times: Times, slo: Slo, starting: Sequence[tuple[float, float]] = ()) -> Missed:
    """Split the misses of a run.

    :param starting: (from, to) in seconds for each time in which new workers were on their way.
    """
    failed = np.isnan(times.ttft_s) | np.isnan(times.tpot_s)
    late, slow = ~failed & (times.ttft_s > slo.ttft_s), ~failed & (times.tpot_s > slo.tpot_s)
    outside = failed | late | slow
    return Missed(
        total=len(failed),
        ttft=int((late & ~slow).sum()),
        tpot=int((slow & ~late).sum()),
        both=int((late & slow).sum()),
        failed=int(failed.sum()),
        causes=_causes(times, slo, failed, late, slow, starting),
        worst=_worst(times.arrival_s, outside),
        low=_attainment(times, slo, 1 + TTFT_ERROR, 1 + TPOT_ERROR),
        high=_attainment(times, slo, 1 / (1 + TTFT_ERROR), 1 / (1 + TPOT_ERROR)),
    )


def starting_spells(
    changes: Iterable[tuple[float, int, int]], startup_s: float, *, moves: bool = False
) -> Iterator[tuple[float, float]]:
    """Yield (from, to) for each time in which new workers were on their way.

    :param changes: (second, prefill workers wanted, decode workers wanted), the first one what there was at start.
    :param moves: whether a worker may go from one pool to the other instead.
    """
    for (_, *before), (at_s, *after) in pairwise(changes):
        if sum(after) > sum(before) or not (moves or all(now <= then for now, then in zip(after, before, strict=True))):
            yield at_s, at_s + startup_s


def _attainment(times: Times, slo: Slo, ttft: float, tpot: float) -> float:
    good = metrics.inside(times.ttft_s * ttft, times.tpot_s * tpot, slo)
    return metrics.attainment(int(good.sum()), len(good)) or 0.0


def _causes(
    times: Times, slo: Slo, failed: Array, late: Array, slow: Array, starting: Sequence[tuple[float, float]]
) -> dict[str, int]:
    none = np.zeros(len(failed), dtype=bool)
    hopeless = none if times.alone_s is None else late & (times.alone_s > slo.ttft_s)
    waits = [(times.arrival_s >= start_s) & (times.arrival_s < end_s) for start_s, end_s in starting]
    cold = late & ~hopeless & (np.any(waits, axis=0) if waits else none)
    crowded = slow & ~late
    alone = none if times.alone_tpot_s is None else crowded & (times.alone_tpot_s > slo.tpot_s)
    mixed = none if times.local is None else crowded & ~alone & times.local
    counts = {
        Cause.FAILED: failed,
        Cause.HOPELESS: hopeless,
        Cause.STARTING: cold,
        Cause.WAITED: late & ~hopeless & ~cold,
        Cause.ALONE: alone,
        Cause.MIXED: mixed,
        Cause.CROWDED: crowded & ~alone & ~mixed,
    }
    found = {cause.value: int(which.sum()) for cause, which in counts.items()}
    return dict(sorted(((name, count) for name, count in found.items() if count), key=lambda item: -item[1]))


def _worst(arrival_s: Array, outside: Array) -> Spell | None:
    if not outside.any():
        return None
    end_s = float(arrival_s.max()) or 1.0
    part = np.minimum((arrival_s * (SPELLS / end_s)).astype(int), SPELLS - 1)
    counts = np.bincount(part[outside], minlength=SPELLS)
    index = int(counts.argmax())
    edges = (end_s * index / SPELLS, end_s * (index + 1) / SPELLS)
    return Spell(*edges, missed=int(counts[index]), total=int((part == index).sum()))


def lines(found: Missed, slo: Slo) -> list[str]:
    """Say in a few lines what was missed, why and when."""
    if not found.count:
        return [f"All {found.total} requests were inside both objectives."]
    parts = (
        (found.ttft, f"TTFT over {slo.ttft_s:g} s"),
        (found.tpot, f"TPOT over {1e3 * slo.tpot_s:g} ms"),
        (found.both, "both"),
        (found.failed, "failed"),
    )
    split = ", ".join(f"{share(count, found.total)} {title}" for count, title in parts if count)
    why = "; ".join(f"{share(count, found.total)} {cause}" for cause, count in found.causes.items())
    sentences = [f"Missed: {share(found.count, found.total)} of requests ({split})", f"Why: {why}"]
    if (spell := found.worst) is not None:
        sentences.append(
            f"When: most between {spell.start_s:.0f} and {spell.end_s:.0f} s, "
            f"{spell.missed} of {spell.total} requests that came then"
        )
    return sentences


def shortly(found: Missed) -> str:
    """Say in one line what was missed and why."""
    causes = "; ".join(f"{share(count, found.total)} {cause}" for cause, count in found.causes.items())
    return f"misses {share(found.count, found.total)}: {causes}" if causes else "misses nothing"


def share(part: int, whole: int) -> str:
    """Return a share in percent, with a digit more where it is small."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if percent >= 1 or not part else f"{percent:.2g} %"
