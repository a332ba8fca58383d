"""The search: what it advises, what it compares with, and that it does so again."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest

from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.resources import data_dir
from pdplugins.studies.advise import search, words
from pdplugins.studies.advise.candidates import COLOCATED
from pdplugins.studies.advise.page import page
from pdplugins.studies.advise.race import Job, Race, Score
from pdplugins.studies.advise.search import Advice, Interval
from pdplugins.studies.advise.words import fewest, front, picture, verdict
from pdplugins.types import TraceRequest
from tests.studies.advise.questions import QUESTION, small_advice, small_search, small_traffic

pytestmark = pytest.mark.moderate


@pytest.fixture(scope="module")
def light() -> Advice:
    """Traffic that few GPUs serve."""
    return small_advice(rate=4.0)


@pytest.fixture(scope="module")
def heavy() -> Advice:
    """Traffic that nothing serves on these GPUs."""
    return small_advice(rate=300.0, ttft_s=0.04)


def test_light_traffic_gets_the_fewest_gpus_and_the_simplest_system(light: Advice) -> None:
    assert light.reached
    assert light.best.candidate.gpus == 2
    assert light.best.candidate.system == COLOCATED
    assert {one.candidate.gpus for one in light.tried} == {2, 3}


@pytest.fixture(scope="module")
def bursty() -> Advice:
    """Traffic whose bursts lie between the four stretches that a part of it is cut out of."""
    with small_search():
        traffic = small_traffic(rate=8.0)
        times, now_s, bursts = [], 0.0, [(60, 140), (160, 240), (260, 340)]
        for index in range(400):
            now_s += 0.008 if any(first <= index < last for first, last in bursts) else 0.25
            times.append(now_s)
        requests = [TraceRequest(at_s, 1800, 60) for at_s in times]
        traffic = replace(traffic, requests=requests, draw=lambda _: requests)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "WHOLE", 400)
            patch.setattr(search, "DRAW", 400)
            patch.setattr(search, "FINALISTS", 1)
            return search.advise(replace(QUESTION, gpus=4), traffic, target=0.95, jobs=1, seed=0)


def test_what_a_part_of_the_traffic_does_not_show_is_looked_for_with_more_gpus(bursty: Advice) -> None:
    fewest_on_the_part = min(one.gpus for one in bursty.tried if one.attainment >= 0.95)
    assert bursty.reached
    assert bursty.best.gpus > fewest_on_the_part + 0.5
    assert bursty.best.requests == 400


def test_the_fewest_gpus_that_do_on_all_of_the_traffic_are_found_in_few_runs(
    bursty: Advice, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bursty.tried[0]
    others = [
        replace(one, gpus=float(gpus), attainment=1.0, candidate=replace(one.candidate, system=f"on {gpus}"))
        for gpus in range(2, 33)
    ]
    by_system = {score.candidate.system: score for score in others}
    subject = search._Search(replace(QUESTION, gpus=32), small_traffic(), 0.95, cast("Race", None), lambda _: None)
    ran: list[Score] = []

    def scores(stage: int | None, jobs: list[Job]) -> list[Score]:
        found = [by_system[candidate.system] for candidate, _ in jobs]
        ran.extend(found)
        return [replace(score, attainment=1.0 if score.gpus >= 21 else 0.5) for score in found]

    monkeypatch.setattr(subject, "_scores", scores)
    monkeypatch.setattr(subject, "_tuned", lambda gpus: [])
    found = subject._larger(others)
    assert min(score.gpus for score in found if score.attainment >= 0.95) == 21
    assert len(ran) <= 6


def test_both_sides_have_their_best_settings_on_all_of_the_traffic(bursty: Advice) -> None:
    """On a part of it all are equal, so that a part cannot choose between chunks, or between rivals."""
    rivals = [one for one in bursty.finalists if one.candidate.system == bursty.other.candidate.system]
    assert bursty.other.requests == 400
    assert all(bursty.other.attainment >= one.attainment for one in rivals if one.gpus <= bursty.best.gpus + 0.05)
    tuned = [one for one in bursty.finalists if one.candidate.system == COLOCATED]
    assert len({one.candidate.label for one in tuned}) > 2


def test_what_is_known_of_a_part_is_said_to_be(bursty: Advice) -> None:
    (line,) = fewest(bursty)
    assert ", mostly on 100 of 400 requests: " in line or search.SECOND >= 400
    assert "not within" not in line or search.SECOND >= 400


def test_under_overload_it_says_that_nothing_reaches_the_target(heavy: Advice) -> None:
    assert not heavy.reached
    most = max(one.attainment for one in heavy.finalists)
    assert (heavy.instead_of or heavy.best).attainment == pytest.approx(most, abs=0.001)
    assert "Nothing that was tried attains" in "\n".join(verdict(heavy))
    assert fewest(heavy) == []


def test_it_is_compared_with_co_location_on_as_many_gpus(heavy: Advice) -> None:
    assert [heavy.best.candidate.system, heavy.other.candidate.system].count(COLOCATED) == 1
    assert heavy.other.gpus <= heavy.best.gpus + 0.1
    assert len(heavy.best_draws) == len(heavy.other_draws) == 5


def test_it_comes_out_the_same_with_more_processes(light: Advice) -> None:
    assert verdict(small_advice(rate=4.0, jobs=2)) == verdict(light)


def test_every_system_keeps_its_best_settings(light: Advice) -> None:
    assert {"dopd", "ampd", "arrow", "dynaserve", "fusion"} <= set(light.names())


def test_the_interval_is_that_of_student() -> None:
    found = Interval.of([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.mean == pytest.approx(0.3)
    assert found.high - found.mean == pytest.approx(2.776 * 0.158114 / 5**0.5, rel=1e-3)


def test_the_front_has_what_nothing_beats(light: Advice) -> None:
    found = front(light.scores())
    for one in light.scores():
        assert any(other.gpus <= one.gpus + 0.05 and other.attainment >= one.attainment for other in found)
    assert [a.attainment < b.attainment for a, b in pairwise(found)].count(False) == 0


def test_the_picture_names_every_system(light: Advice) -> None:
    lines = list(picture(light))
    assert all(name in lines[-2] for name in light.names())
    assert any(letter.isupper() for line in lines[:14] for letter in line)


def test_the_page_has_the_verdict_first_and_needs_nothing_else(heavy: Advice) -> None:
    text = page(heavy, "pdplugins advise", "abc")
    first = verdict(heavy)[0]
    assert f"<h1>{first}</h1>" in text
    assert text.index("<h1>") < text.index("SLO attainment on all") < text.index("<svg") < text.index("<table")
    assert "http:" not in text
    assert len(text) < 200_000


def test_a_request_that_no_worker_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds the longest request, 9000000 tokens"):
        small_advice(longest_tokens=9_000_000)


def test_the_figures_of_the_verdict_agree_with_each_other(light: Advice, heavy: Advice) -> None:
    for found in (light, heavy):
        said = "\n".join(verdict(found))
        ours, theirs, apart, how = re.findall(
            r"([\d.]+) % of \d+ requests.* attains ([\d.]+) % of the same, ([\d.]+) points (more|less); over",
            said,
            re.S,
        )[0]
        assert (float(theirs) - float(ours)) * (1 if how == "more" else -1) == pytest.approx(float(apart), abs=0.05)
        assert f"gains {100 * found.gain.mean:+.1f} (95 % interval" in said


def test_no_system_is_said_to_attain_the_target_with_less_than_what_is_advised(light: Advice) -> None:
    """Only a finalist was tried on all of the traffic: what it attained on a part of it counts no more."""
    best = light.best
    light = replace(light, other=best)
    hopeful = replace(light.tried[0], gpus=best.gpus - 1, attainment=1.0)
    assert fewest(replace(light, tried=(hopeful,), finalists=(best,))) == [f"Fewest GPUs for 95 %: {COLOCATED} 2"]
    failed = replace(best, attainment=0.5, gpus=3.0, candidate=replace(best.candidate, system="arrow"))
    hopeful = replace(failed, attainment=1.0, candidate=replace(failed.candidate, label="another"))
    assert fewest(replace(light, tried=(hopeful,), finalists=(best, failed)))[0].endswith("not within 3: arrow")
    assert fewest(replace(light, target=1.1)) == []


def test_a_version_in_the_name_of_a_system_stays_whole(light: Advice) -> None:
    named = replace(light.best, candidate=replace(light.best.candidate, system="policy-1.0"))
    said = fewest(replace(light, best=named, other=named, tried=(), finalists=(named,)))
    assert said == ["Fewest GPUs for 95 %: policy-1.0 2"]


def test_nothing_runs_twice_and_what_is_hopeless_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[tuple[str, str, int], str]] = []
    scores: dict[str, list[Score]] = defaultdict(list)
    simulated = Race.run

    def run(race: Race, jobs: list[Job], *more: Any) -> list[Score]:
        ran.extend((candidate.key, trace) for candidate, trace in jobs)
        found = simulated(race, jobs, *more)
        for one in found:
            scores[one.trace].append(one)
        return found

    monkeypatch.setattr(Race, "run", run)
    found = small_advice(rate=60.0, ttft_s=0.1)
    assert len(ran) == len(set(ran))
    most = max(one.attainment for one in scores["first"])
    hopeless = {one.candidate.key for one in scores["first"] if one.attainment < most / 2}
    scalers = {one.candidate.key for one in scores["first"] if one.candidate.scales}
    assert hopeless - scalers
    assert not (hopeless - scalers) & {key for key, trace in ran if trace == "second"}
    assert {one.candidate.system for one in found.tried} == {one.candidate.system for one in scores["first"]}


def test_co_location_may_leave_gpus_idle_where_its_workers_need_several_each() -> None:
    """Seven GPUs hold three workers of two; and what is compared with a scaler's five GPUs on average has six.

    The five have none, as only of all GPUs that there are some may be left over.
    """
    model = TableModel(read_profile(data_dir("profiles") / "h100/llama-3.1-70b-fp8.json"))
    longest = model.kv_capacity_tokens(1) + 1
    asked = replace(QUESTION, profile="h100/llama-3.1-70b-fp8", gpus=7, longest_tokens=longest)
    running = search._Search(asked, small_traffic(), 0.95, cast("Any", None), lambda *_: None)
    pools = [cell.config.deployment for cell in running._colocated(range(7, 0, -1))]
    assert {(int(pool.prefill.tp), pool.prefill.replicas + pool.decode.replicas) for pool in pools} == {(2, 3), (4, 1)}
    assert {cell.gpus for cell in running._colocated([5, 6, 7, 4])} == {6}
    assert running._colocated([1]) == []


def test_a_share_below_the_target_does_not_read_as_the_target() -> None:
    assert [words.percent(share) for share in (0.9896, 0.99, 0.97)] == ["98.96 %", "99.00 %", "97.0 %"]
