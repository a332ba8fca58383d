"""Says what was found: the verdict, the tables, and the picture of what GPUs buy, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdplugins.contracts.request import Slo
from pdplugins.studies.advise.candidates import COLOCATED
from pdplugins.studies.advise.race import Score
from pdplugins.studies.advise.search import DRAWS, SECOND, Advice
from pdplugins.verdict import TPOT_ERROR, TTFT_ERROR, shortly

WIDTH, HEIGHT = 64, 14
"""Columns and lines of the picture."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DOES = {
    COLOCATED: "every worker prefills in the steps in which it decodes; nothing is moved",
    "fixed split": "prompts never share a step with outputs",
    "threshold scaling": "adds and removes workers by their utilisation",
    "dopd": "sizes both pools to the forecast load, so it holds GPUs only while it needs them",
    "ampd": "prefills on the decode worker where that breaks no objective, else on a prefill worker",
    "arrow": "moves workers between the phases, request by request",
    "dynaserve": "fills what the TPOT objective leaves of each decode step with prompts",
    "rapid": "moves watts and workers between the phases",
    "fusion": "chooses how many workers only prefill, and serves the prompts that can still be in time first",
    "fusion, scaling": "as fusion, and adds and removes workers to fit the forecast",
}
"""What a system does, for the reason of a verdict."""


def verdict(advice: Advice) -> list[str]:
    """Return the answer in a few lines: what to run, what it gains, how sure that is, and why."""
    best, other, slo = advice.best, advice.other, Slo(advice.asked.ttft_s, advice.asked.tpot_s)
    gpus = f"{best.gpus:.1f} GPUs on the average" if best.candidate.scales else f"{round(best.gpus)} GPUs"
    lines = [
        f"Run {best.candidate.name}, on {gpus}: "
        f"{percent(best.attainment)} of {best.requests} requests inside TTFT {slo.ttft_s:g} s and "
        f"TPOT {1e3 * slo.tpot_s:g} ms."
    ]
    if not advice.reached:
        most = "; this attains most" if advice.instead_of is None else ""
        lines.append(f"Nothing that was tried attains {100 * advice.target:g} % on {advice.asked.gpus} GPUs{most}.")
    if advice.instead_of is not None:
        lines.append(
            f"{advice.instead_of.candidate.name} attains {percent(advice.instead_of.attainment)}: "
            f"{best.candidate.system} is as good within the error, and simpler."
        )
    interval = advice.attainment
    lines += [
        f"  over {DRAWS} {advice.traffic.how}: {percent(interval.mean)} "
        f"(95 % interval {percent(interval.low)} to {percent(interval.high)})",
        f"  if the simulator's times are off by their known error (TTFT {TTFT_ERROR:.1%}, TPOT {TPOT_ERROR:.1%}): "
        f"{percent(best.missed.low)} to {percent(best.missed.high)}",
        _gain(advice),
        f"  {_sure(advice)}",
        f"Why: {DOES.get(best.candidate.system, 'a plugin of another package')}.",
    ]
    return [*lines, *(f"  {line}" for line in (_misses(best), _misses(other)))]


def _gain(advice: Advice) -> str:
    """Say what the other attains on the same traffic, and the gain over the draws: two sets of figures, each named."""
    gain, best, other = advice.gain, advice.best, advice.other
    held = f"{other.gpus:.1f}" if other.candidate.scales else f"{round(other.gpus)}"
    plain = "Plain co-location with tuned chunks" if other.candidate.system == COLOCATED else "The best of the others"
    return (
        f"{plain} ({other.candidate.name}, {held} GPUs) attains {percent(other.attainment)} of the same, "
        f"{_apart(best.attainment, other.attainment)}; over the {DRAWS} {advice.traffic.how} "
        f"{best.candidate.system} gains {points(gain.mean)} (95 % interval {points(gain.low)} to {points(gain.high)})."
    )


def _apart(ours: float, theirs: float) -> str:
    """Say how far two shares are apart, as they are printed."""
    printed = [float(percent(share).removesuffix(" %")) for share in (ours, theirs)]
    difference = printed[1] - printed[0]
    return f"{abs(difference):.1f} points {'more' if difference > 0 else 'less'}"


def _sure(advice: Advice) -> str:
    """Say whether the gain is larger than chance, and than the simulator's error."""
    gain, best, other = advice.gain, advice.best.missed, advice.other.missed
    if gain.low <= 0 <= gain.high:
        return "The two are equal as far as these draws tell."
    ahead = gain.mean > 0
    against = best.low - other.high if ahead else best.high - other.low
    if (against > 0) == ahead:
        return f"It stays so when the simulator errs against it, by its known error ({points(against)} points)."
    return f"The simulator's known error may undo it ({points(against)} points when it errs against it)."


def _misses(score: Score) -> str:
    return f"{score.candidate.system} {shortly(score.missed)}"


def fewest(advice: Advice) -> list[str]:
    """Say with how few GPUs each system attains the target, in the order of that number; it agrees with the verdict."""
    need: dict[str, float] = {}
    for score in advice.scores():
        if _holds(advice, score):
            system = score.candidate.system
            need[system] = min(need.get(system, float("inf")), score.gpus)
    if not need:
        return []
    ranked = sorted(need.items(), key=lambda item: item[1])
    parts = [f"{name} {f'{gpus:.1f}'.removesuffix('.0')}" for name, gpus in ranked]
    never = [name for name in advice.names() if name not in need]
    where = ""
    if len(advice.traffic.requests) > SECOND:  # all of it may have longer bursts: who needs more there is not known
        where, never = f", mostly on {SECOND:,} of {len(advice.traffic.requests):,} requests", []
    line = f"Fewest GPUs for {100 * advice.target:g} %{where}: " + ", ".join(parts)
    return [line + (f"; not within {advice.asked.gpus}: {', '.join(never)}" if never else "")]


def _holds(advice: Advice, score: Score) -> bool:
    """Tell whether a score attains the target, as far as is known.

    Most were tried on a part of the traffic only. Where a finalist attains less on all of it, nothing counts that its
    system attained on the part with as few GPUs; nor does what has fewer GPUs than what is advised.
    """
    if not advice.reached or score.attainment < advice.target or score.gpus < advice.best.gpus - 0.05:
        return False
    mine = [finalist for finalist in advice.finalists if finalist.candidate.system == score.candidate.system]
    known = any(finalist.candidate.key == score.candidate.key for finalist in mine)
    return known or all(finalist.attainment >= advice.target or finalist.gpus < score.gpus - 0.05 for finalist in mine)


def front(scores: Sequence[Score]) -> list[Score]:
    """Return the scores that no other beats in both attainment and GPUs, by GPUs."""
    found: list[Score] = []
    for score in sorted(scores, key=lambda score: (round(score.gpus, 1), -score.attainment)):
        if not found or score.attainment > found[-1].attainment:
            found.append(score)
    return found


def picture(advice: Advice) -> Iterator[str]:
    """Yield the lines of a picture: GPUs to the right, attainment up, a letter for each system."""
    names = advice.names()
    letters = dict(zip(names, LETTERS, strict=False))
    scores = advice.scores()
    on_front = {id(score) for score in front(scores)}
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    simplest_last = sorted(scores, key=lambda score: (id(score) in on_front, -score.candidate.rank))
    for score in simplest_last:  # so that it is drawn on top
        column = round(score.gpus / advice.asked.gpus * (WIDTH - 1))
        row = round((1 - score.attainment) * (HEIGHT - 1))
        letter = letters.get(score.candidate.system, "?")
        grid[row][min(column, WIDTH - 1)] = letter if id(score) in on_front else letter.lower()
    for index, cells in enumerate(grid):
        mark = {0: "100 %", (HEIGHT - 1) // 2: " 50 %", HEIGHT - 1: "  0 %"}.get(index, "     ")
        yield f"{mark} |{''.join(cells).rstrip()}"
    yield f"      +{'-' * WIDTH}"
    yield f"       0{'GPUs held, on the average':^{WIDTH - 3}}{advice.asked.gpus:>2}"
    yield "       " + ", ".join(f"{letter} {name}" for name, letter in letters.items())
    yield "       capital letters: nothing else attains more with as few GPUs"


def points(value: float) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    return f"{100 * value:+.1f}"


def percent(value: float) -> str:
    """Return a share in percent; as many digits as tell it from 99 and from 100 %."""
    return f"{100 * value:.2f} %" if 0.985 < value < 0.9999 else f"{100 * value:.1f} %"
