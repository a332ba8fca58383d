"""Finds what to run: successive halving over all settings, then fewer GPUs, then all of the traffic and other draws.

Every system is judged at its best settings, and on fewer requests the further it is behind the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import mean, stdev

from pdplugins.errors import ConfigError
from pdplugins.studies.advise.candidates import COLOCATED, Candidate, Question, systems
from pdplugins.studies.advise.race import Job, LeftOut, Race, Score, race
from pdplugins.studies.advise.traffic import Traffic, part_of

STAGES = ("all settings", "the best settings", "fewer GPUs", "all traffic", "other draws")
FIRST, SECOND, WHOLE, DRAW = 800, 2_400, 20_000, 6_000
"""Requests of each trace: for all settings, for the best ones and for fewer GPUs, for finalists, for other draws."""
KEPT = 3
"""Settings of each system that are looked at longer, and with fewer GPUs: the best of as many sizes of workers."""
FINALISTS = 4
DRAWS = 5
STUDENT_T = 2.776
"""Student's t of a 95 % interval with `DRAWS` draws."""
HOPELESS = 0.5
"""What attains less than this share of what the best attains is not tried on the second part of the traffic.

Where the best attains less than this share of the target, a part of the traffic stands for all of it: queues grow
for as long as a run lasts, which costs the square of its length, and nobody would run any of it.
"""
BEHIND = 0.1
"""Attainment behind the best beyond which a setting is not tried on all of the traffic."""
NEAR = 0.005
"""Attainment that a system may lack on a part of the traffic and still be tried with fewer GPUs."""
EQUAL_GPUS = 0.05
"""GPUs held on the average that differ by less are equal."""

Progress = Callable[[Sequence[float]], None]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over draws, and the 95 % interval of that mean."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the interval by Student's t."""
        middle = mean(values)
        half = STUDENT_T * stdev(values) / sqrt(len(values))
        return cls(middle, middle - half, middle + half)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to run, what it was compared with, and everything that was tried."""

    asked: Question
    traffic: Traffic
    target: float
    best: Score
    """On all of the traffic."""
    other: Score
    """Tuned plain co-location on as many GPUs; the best of the others where co-location itself is the best."""
    best_draws: tuple[Score, ...]
    other_draws: tuple[Score, ...]
    finalists: tuple[Score, ...]
    """On all of the traffic, the best there first."""
    instead_of: Score | None
    """What attains most, where a simpler one that is as good within the error is advised; else None."""
    tried: tuple[Score, ...]
    """The best settings of every system, on a part of the traffic, with all GPUs and with fewer."""
    settings: int
    """Settings that were simulated."""
    left_out: tuple[LeftOut, ...]

    @property
    def attainment(self) -> Interval:
        """Return what the best attains over the draws."""
        found = Interval.of([score.attainment for score in self.best_draws])
        return Interval(found.mean, max(found.low, 0.0), min(found.high, 1.0))

    @property
    def gain(self) -> Interval:
        """Return how much more it attains than the other, draw by draw."""
        pairs = zip(self.best_draws, self.other_draws, strict=True)
        return Interval.of([ours.attainment - theirs.attainment for ours, theirs in pairs])

    @property
    def reached(self) -> bool:
        """Return whether it attains the target."""
        return self.best.attainment >= self.target

    def scores(self) -> list[Score]:
        """Return the score of everything that was kept, each on the most traffic that it was tried on."""
        return list({score.candidate.key: score for score in (*self.tried, *self.finalists, self.other)}.values())

    def names(self) -> list[str]:
        """Return the systems, the simplest first."""
        ranks = {score.candidate.system: score.candidate.rank for score in self.scores()}
        return sorted(ranks, key=lambda name: ranks[name])


def advise(
    asked: Question, traffic: Traffic, *, target: float, jobs: int, seed: int, progress: Progress = lambda _: None
) -> Advice:
    """Search for the cheapest way to attain `target`, or for the best one if none does. Raises ConfigError."""
    traces = {"first": part_of(traffic.requests, FIRST), "second": part_of(traffic.requests, SECOND)}
    traces |= {"whole": part_of(traffic.requests, WHOLE), "overload": part_of(traffic.requests, DRAW)}
    traces |= {f"draw {number}": part_of(traffic.draw(number), DRAW) for number in range(1, DRAWS + 1)}
    with race(traces, jobs, seed) as running:
        return _Search(asked, traffic, target, running, progress).run()


class _Search:
    def __init__(self, asked: Question, traffic: Traffic, target: float, running: Race, progress: Progress) -> None:
        self._asked, self._traffic, self._target = asked, traffic, target
        self._race, self._progress = running, progress
        self._systems = systems(asked)
        self._settings = 0
        self._whole = "whole"
        """The trace that finalists run on."""
        self._done: dict[tuple[tuple[str, str, int], str], Score] = {}

    def run(self) -> Advice:
        kept = self._first()
        most = max(score.attainment for score in kept)
        # what scales may only have started too small for so few requests
        hopeless = [score for score in kept if score.attainment < HOPELESS * most and not score.candidate.scales]
        second = self._scores(1, [(score.candidate, "second") for score in kept if score not in hopeless])
        fewer = self._fewer(kept, second)
        tried = [*second, *fewer, *hopeless]
        finalists = self._finalists(tried)
        most_attained = self._confirmed(finalists)
        best = self._simplest(most_attained, finalists)
        instead_of = None if best is most_attained else most_attained
        other = self._other(best, instead_of, tried, finalists)
        return Advice(
            asked=self._asked,
            traffic=self._traffic,
            target=self._target,
            best=best,
            other=other,
            best_draws=self._draws(best.candidate),
            other_draws=self._draws(other.candidate),
            finalists=tuple(finalists),
            instead_of=instead_of,
            tried=tuple(tried),
            settings=self._settings,
            left_out=tuple(self._race.left_out),
        )

    def _first(self) -> list[Score]:
        """Return the best settings of each system with all GPUs."""
        cells = self._all(self._asked.gpus)
        if not any(cell.system == COLOCATED for cell in cells):
            raise ConfigError(
                f"advise: no worker of {self._asked.profile} within {self._asked.gpus} GPUs has times of both phases "
                f"and holds the longest request, {self._asked.longest_tokens} tokens; take more GPUs, or shorten "
                "requests with --max-context"
            )
        self._settings = len(cells)
        scores = self._scores(0, [(cell, "first") for cell in cells])
        kept = [score for name in self._names(scores) for score in _sizes_apart(self._best_of(name, scores))[:KEPT]]
        stock = next((score for score in self._best_of(COLOCATED, scores) if not score.candidate.effort), None)
        return kept if stock is None or stock in kept else [stock, *kept]

    def _fewer(self, kept: Sequence[Score], second: Sequence[Score]) -> list[Score]:
        """Take GPUs away from fixed pools, for as long as settings of their shape attain about the target."""
        scores = [score for score in [*kept, *second] if not score.candidate.scales]
        alive = {_shape(score.candidate) for score in scores if self._goes_on(score)}
        found: list[Score] = []
        for gpus in range(self._asked.gpus - 1, 1, -1):
            cells = [cell for cell in self._all(gpus) if _shape(cell) in alive]
            scores = self._scores(None, [(cell, "second") for cell in cells])  # the bar counts GPUs
            alive -= {_shape(score.candidate) for score in scores}
            alive |= {_shape(score.candidate) for score in scores if self._goes_on(score)}
            found += scores
            self._step(2, 1 - (gpus - 2) / max(self._asked.gpus - 2, 1))
        return found

    def _goes_on(self, score: Score) -> bool:
        return score.attainment >= self._target - NEAR

    def _all(self, gpus: int) -> list[Candidate]:
        return [cell for rank, system in enumerate(self._systems) for cell in system.cells(self._asked, gpus, rank)]

    def _colocated(self, numbers: Iterable[int]) -> list[Candidate]:
        """Return the co-locations on the first of these numbers of GPUs that has any."""
        found = ([cell for cell in self._all(gpus) if cell.system == COLOCATED] for gpus in numbers)
        return next(filter(None, found), [])

    def _finalists(self, tried: Sequence[Score]) -> list[Score]:
        """Run the best candidates on all of the traffic, with the best scaler, co-location and split among them."""
        ordered = sorted(tried, key=self._worth)
        most = max(score.attainment for score in ordered)
        if most < HOPELESS * self._target:
            self._whole = "overload"
        near = [score for score in ordered if score.attainment >= min(self._target, most - BEHIND)]
        always = [next((score for score in ordered if score.candidate.effort == effort), None) for effort in range(3)]
        always.append(next((score for score in ordered if score.candidate.scales), None))
        chosen = {score.candidate.key: score.candidate for score in [*_apart(near)[:FINALISTS], *filter(None, always)]}
        found = self._scores(3, [(candidate, self._whole) for candidate in chosen.values()])
        if not any(map(self._reaches, found)):
            found += self._larger([score for score in ordered if score.candidate.key not in chosen])
        best = min(found, key=self._worth)
        found += self._tuned(best.candidate.gpus if not best.candidate.scales else ceil(best.gpus))
        return sorted({score.candidate.key: score for score in found}.values(), key=self._worth)

    def _reaches(self, score: Score) -> bool:
        return score.attainment >= self._target

    def _larger(self, others: Sequence[Score]) -> list[Score]:
        """Look for the fewest GPUs with which one of these reaches the target on all of the traffic.

        What reached it with the fewest on a part may miss it where the rest has longer bursts. More GPUs never attain
        less, but for chance.
        """
        rest = [score for score in others if self._reaches(score)]
        numbers = sorted({round(score.gpus) for score in rest})
        found: list[Score] = []
        low, high = 0, len(numbers)
        while low < high:
            middle = (low + high) // 2
            here = _apart([score for score in rest if round(score.gpus) == numbers[middle]])[:FINALISTS]
            tried = self._scores(None, [(score.candidate, self._whole) for score in here])
            tried += self._tuned(numbers[middle])
            found += tried
            low, high = (low, middle) if any(map(self._reaches, tried)) else (middle + 1, high)
        return found

    def _tuned(self, gpus: int) -> list[Score]:
        """Return co-location on so many GPUs, on all of the traffic, with each setting that may be its best.

        On a part of the traffic many chunks are equal, and differ on all of it. What everything else is compared with
        must have its own best one.
        """
        cells = self._colocated([min(gpus, self._asked.gpus)])
        scores = self._best_of(COLOCATED, self._scores(None, [(cell, "second") for cell in cells]))
        near = [score.candidate for score in scores if score.attainment >= scores[0].attainment - NEAR]
        return self._scores(None, [(candidate, self._whole) for candidate in near])

    def _confirmed(self, finalists: Sequence[Score]) -> Score:
        """Return the best that attains the target on other draws too; else the one that attains most on them."""
        found: dict[int, float] = {}
        for index, score in enumerate(finalists):
            if found and score.attainment < self._target:
                break
            found[index] = _mean(self._draws(score.candidate))
            if found[index] >= self._target:
                return score
        return finalists[max(found, key=lambda index: found[index])]

    def _simplest(self, most: Score, finalists: Sequence[Score]) -> Score:
        """Return the simplest finalist that is as good as `most` within the error.

        Where `most` attains the target, on the draws too, so does that one, on no more GPUs.
        """
        for score in sorted(finalists, key=lambda score: (score.candidate.effort, self._worth(score))):
            if score.candidate.effort >= most.candidate.effort:
                break
            if most.attainment >= self._target > score.attainment or score.attainment < most.attainment - BEHIND:
                continue
            if most.attainment >= self._target and score.gpus > most.gpus + EQUAL_GPUS:
                continue
            draws, best_draws = self._draws(score.candidate), self._draws(most.candidate)
            missed = _mean(best_draws) >= self._target > _mean(draws)
            if not missed and as_good(draws, best_draws):
                return score
        return most

    def _draws(self, candidate: Candidate) -> tuple[Score, ...]:
        return tuple(self._scores(4, [(candidate, f"draw {number}") for number in range(1, DRAWS + 1)]))

    def _other(
        self, best: Score, instead_of: Score | None, tried: Sequence[Score], finalists: Sequence[Score]
    ) -> Score:
        """Return what the best is compared with, on all of the traffic."""
        plain = best.candidate.system == COLOCATED
        if plain and instead_of is not None and instead_of.candidate.system != COLOCATED:
            return instead_of
        rival = self._best_split(best, tried) if plain else self._best_colocated(best)
        return self._scores(None, [(rival or finalists[-1].candidate, self._whole)])[0]

    def _best_split(self, best: Score, tried: Sequence[Score]) -> Candidate | None:
        """Return what attains most without co-location, on no more GPUs than `best`; None where nothing does."""
        rivals = [
            score for score in tried if score.candidate.system != COLOCATED and score.gpus <= best.gpus + EQUAL_GPUS
        ]
        if not rivals:
            return None
        ordered = sorted(rivals, key=lambda score: (-score.attainment, score.strain))
        near = [score for score in ordered if score.attainment >= ordered[0].attainment - NEAR]
        jobs = [(score.candidate, self._whole) for score in _apart(near)[: 2 * FINALISTS]]
        return min(self._scores(None, jobs), key=lambda score: (-score.attainment, score.strain)).candidate

    def _best_colocated(self, best: Score) -> Candidate:
        """Return the best co-location on the GPUs of `best`, or on as many as it needs."""
        gpus = best.candidate.gpus if not best.candidate.scales else min(ceil(best.gpus), self._asked.gpus)
        numbers = [*range(gpus, self._asked.gpus + 1), *range(gpus - 1, 0, -1)]
        scores = next(filter(None, map(self._tuned, numbers)))
        return self._best_of(COLOCATED, scores)[0].candidate

    def _worth(self, score: Score) -> tuple[bool, tuple[float, int], float, int, float]:
        """Order scores: what reaches the target with the fewest GPUs comes first, and of equals the simplest."""
        reached = score.attainment >= self._target
        gpus = (round(score.gpus, 1), score.candidate.gpus) if reached else (0.0, 0)
        return not reached, gpus, -round(score.attainment, 3), score.candidate.rank, score.strain

    def _best_of(self, system: str, scores: Iterable[Score]) -> list[Score]:
        mine = [score for score in scores if score.candidate.system == system]
        return sorted(mine, key=lambda score: (-round(score.attainment, 3), round(score.gpus, 1), score.strain))

    def _names(self, scores: Iterable[Score]) -> list[str]:
        return list(dict.fromkeys(score.candidate.system for score in scores))

    def _scores(self, stage: int | None, jobs: Sequence[Job]) -> list[Score]:
        """Return the score of each job that can run; what has run before is not run again.

        :param stage: whose bar moves meanwhile; None for no bar.
        """

        def done(runs: int, total: int) -> None:
            if stage is not None:
                self._step(stage, runs / total)

        new = [(candidate, trace) for candidate, trace in jobs if (candidate.key, trace) not in self._done]
        if new:
            self._done |= {(score.candidate.key, score.trace): score for score in self._race.run(new, done)}
        return [score for candidate, trace in jobs if (score := self._done.get((candidate.key, trace))) is not None]

    def _step(self, stage: int, share: float) -> None:
        self._progress([1.0] * stage + [share] + [0.0] * (len(STAGES) - stage - 1))


def as_good(simpler: Sequence[Score], most: Sequence[Score]) -> bool:
    """Return whether what attains most gains nothing for certain: zero is in the interval of the gain, draw by draw.

    As simulated, or with all times longer or all shorter by the simulator's known error. That is an error of the GPU's
    profile, so both have it together.
    """
    pairs = list(zip(most, simpler, strict=True))
    worlds = (
        [ours.attainment - theirs.attainment for ours, theirs in pairs],
        [ours.missed.low - theirs.missed.low for ours, theirs in pairs],
        [ours.missed.high - theirs.missed.high for ours, theirs in pairs],
    )
    return any(Interval.of(gains).low <= 0 for gains in worlds)


def _mean(draws: Sequence[Score]) -> float:
    return mean(score.attainment for score in draws)


def _shape(candidate: Candidate) -> tuple[str, str]:
    return candidate.system, candidate.shape


def _sizes_apart(ordered: Sequence[Score]) -> list[Score]:
    """Return the best score of each pair of worker sizes: large workers can not get along with fewer GPUs."""
    seen: dict[str, Score] = {}
    for score in ordered:
        seen.setdefault(score.candidate.sizes, score)
    return list(seen.values())


def _apart(ordered: Sequence[Score]) -> list[Score]:
    """Return the best score of each system and number of GPUs, in order."""
    seen: dict[tuple[str, int], Score] = {}
    for score in ordered:
        seen.setdefault((score.candidate.system, score.candidate.gpus), score)
    return list(seen.values())
