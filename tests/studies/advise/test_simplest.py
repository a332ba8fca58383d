"""Among systems that are equal within the error, the simplest is advised; overload of everything runs shorter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pdplugins.studies.advise.candidates import COLOCATED, SPLIT, Candidate
from pdplugins.studies.advise.race import Job, Race, Score
from pdplugins.studies.advise.search import Advice, as_good
from pdplugins.studies.advise.words import verdict
from pdplugins.verdict import Missed
from tests.studies.advise.questions import small_advice

Attains = Callable[[Candidate, str], tuple[float, float, float]]
"""What a candidate attains on a trace: as simulated, and with longer and with shorter times."""
STOCK = "chunk 8192"


def advised(monkeypatch: pytest.MonkeyPatch, attains: Attains, target: float = 0.95) -> Advice:
    def run(race: Race, jobs: Sequence[Job], *_: Any) -> list[Score]:
        return [_score(candidate, trace, *attains(candidate, trace)) for candidate, trace in jobs]

    monkeypatch.setattr(Race, "run", run)
    return small_advice(target=target)


def _score(candidate: Candidate, trace: str, share: float, low: float, high: float) -> Score:
    missed = Missed(100, 0, 0, 0, 0, {}, None, low, high)
    return Score(candidate, trace, 100, share, float(candidate.gpus), share, 1.0, missed)


def _by_system(shares: dict[str, float], error: float = 0.0) -> Attains:
    """Return shares by system, and by "stock" for co-location as engines start; 0.5 for what is not named."""

    def attains(candidate: Candidate, trace: str) -> tuple[float, float, float]:
        stock = candidate.system == COLOCATED and STOCK in candidate.label
        share = shares.get("stock" if stock else candidate.system, 0.5)
        if candidate.system == "fusion" and trace.startswith("draw"):
            share += 0.01 * (int(trace[-1]) - 3)  # draws differ
        return share, share - error, min(share + error, 0.9)

    return attains


@pytest.mark.parametrize(
    ("shares", "wins"),
    [
        ({"fusion": 0.80, SPLIT: 0.795, COLOCATED: 0.60}, SPLIT),
        ({"fusion": 0.80, SPLIT: 0.795, COLOCATED: 0.795}, COLOCATED),
        ({"fusion": 0.80, SPLIT: 0.70, COLOCATED: 0.60}, "fusion"),
        ({"arrow": 0.80, SPLIT: 0.795, COLOCATED: 0.60}, "arrow"),  # always half a point: no draw says otherwise
        ({"arrow": 0.80, "dopd": 0.80}, "dopd"),
    ],
)
def test_the_simplest_within_the_interval_of_the_draws_is_advised(
    monkeypatch: pytest.MonkeyPatch, shares: dict[str, float], wins: str
) -> None:
    found = advised(monkeypatch, _by_system(shares))
    assert found.best.candidate.system == wins
    said = f"{wins} is as good within the error, and simpler." in "\n".join(verdict(found))
    assert said == (found.instead_of is not None) == (wins in (SPLIT, COLOCATED))


def test_co_location_as_engines_start_is_simpler_than_with_another_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"fusion": 0.80, COLOCATED: 0.795, "stock": 0.793}
    found = advised(monkeypatch, _by_system(shares))
    assert STOCK in found.best.candidate.label
    assert found.other is found.instead_of
    found = advised(monkeypatch, _by_system(shares | {"stock": 0.70}))
    assert found.best.candidate.system == COLOCATED
    assert STOCK not in found.best.candidate.label


def test_a_gain_that_the_error_of_the_simulator_may_undo_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"arrow": 0.88, SPLIT: 0.84}
    assert advised(monkeypatch, _by_system(shares, error=0.01)).best.candidate.system == "arrow"
    assert advised(monkeypatch, _by_system(shares, error=0.07)).best.candidate.system == SPLIT


def test_what_misses_the_target_is_not_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"fusion": 0.80, COLOCATED: 0.795}
    assert advised(monkeypatch, _by_system(shares), target=0.80).best.candidate.system == "fusion"
    assert advised(monkeypatch, _by_system(shares), target=0.79).best.candidate.system == COLOCATED


def test_more_gpus_are_not_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    def attains(candidate: Candidate, trace: str) -> tuple[float, float, float]:
        share = 0.96 if candidate.system == "fusion" or candidate.gpus == 3 else 0.5
        return share, share, share

    found = advised(monkeypatch, attains)
    assert (found.best.candidate.system, found.best.candidate.gpus) == ("fusion", 2)


def test_as_good_looks_at_pairs_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    found = advised(monkeypatch, _by_system({"fusion": 0.8}))
    one = found.best.candidate

    def draws(*shares: float) -> list[Score]:
        return [_score(one, f"draw {index}", share, share, share) for index, share in enumerate(shares, 1)]

    drifting = (0.1, 0.3, 0.5, 0.7, 0.9)
    assert not as_good(draws(*drifting), draws(*(share + 0.01 for share in drifting)))
    assert as_good(draws(*drifting), draws(0.15, 0.25, 0.55, 0.65, 0.95))


@pytest.mark.parametrize(("share", "trace"), [(0.47, "overload"), (0.48, "whole")])
def test_a_part_of_the_traffic_does_where_nothing_attains_half_of_the_target(
    monkeypatch: pytest.MonkeyPatch, share: float, trace: str
) -> None:
    found = advised(monkeypatch, lambda *_: (share, share, share), target=0.95)
    assert {one.trace for one in [*found.finalists, found.other]} == {trace}
