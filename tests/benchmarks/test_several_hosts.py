"""What must hold on several hosts is noticed where it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.rig import verdict

WELL = {"served": 50, "slow": 0, "lost": 0, "last_hit_s": 0.0, "last_lost_s": 0.0, "longest_s": 0.5, "said": []}
CUT = {
    "cut": "worker",
    "host": "three",
    "lasted_s": 26.0,
    "back_s": 5.0,
    "clients": {"one": {"cut": WELL, "healed": WELL}, "two": {"cut": WELL, "healed": WELL}},
    "planless_s": 4.0,
    "started_again": {},
    "wanted": {"prefill": 2, "decode": 2},
    "registered": {"prefill": 2, "decode": 2},
    "registered_twice": [],
}
FACTS = {
    "gpu_budget": 12,
    "gpus_of_one": 2,
    "most_gpus": 12,
    "decisions": [(0, 2, 2), (1, 3, 3)],
    "cuts": [CUT, CUT | {"cut": "router", "host": "two"}, CUT | {"cut": "etcd", "host": "one", "lasted_s": 5.0}],
}
"""What a run comes to where all is well."""


def test_all_is_well() -> None:
    assert list(verdict.complaints(FACTS)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"most_gpus": 14}, "GPU budget"),
        ({"decisions": [(0, 2, 2), (1, 4, 3)]}, "GPU budget"),
        ({"decisions": [(0, 2, 2), (1, 3, 2), (1, 2, 3)]}, "decided twice"),
    ],
)
def test_what_is_decided_too_much_is_noticed(changes: dict[str, Any], said: str) -> None:
    (why,) = verdict.complaints(FACTS | changes)
    assert said in why


def test_a_planner_that_is_silent_at_either_end_is_silent() -> None:
    assert verdict.longest_gap_s([1.0, 12.0, 14.0], 10.0, 20.0) == 6.0
    assert verdict.longest_gap_s([16.0, 14.0], 10.0, 18.0) == 4.0
    assert verdict.longest_gap_s([], 10.0, 18.0) == 8.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"registered": {"prefill": 2, "decode": 3}}, "registered"),
        ({"registered_twice": ["decode-3"]}, "twice"),
        ({"planless_s": 11.0}, "planner"),
        ({"started_again": {"planner": 1}}, "planner"),
        ({"lasted_s": 5.0, "started_again": {"router-two": 1}}, "much shorter than the lease"),
    ],
)
def test_what_is_wrong_at_one_cut_is_noticed(changes: dict[str, Any], said: str) -> None:
    (why,) = verdict.complaints(FACTS | {"cuts": [CUT | changes]})
    assert said in why


@pytest.mark.parametrize(
    ("cut", "host", "when", "changes", "complains"),
    [
        (0, "one", "cut", {"lost": 1, "last_lost_s": 1.0}, True),
        (1, "one", "cut", {"lost": 1, "last_lost_s": 1.0}, False),
        (1, "one", "cut", {"lost": 1, "last_lost_s": 12.0}, True),
        (1, "two", "cut", {"lost": 9, "last_lost_s": 25.0}, False),
        (1, "two", "cut", {"served": 0}, True),
        (1, "two", "healed", {"lost": 9, "last_lost_s": 7.0}, False),
        (1, "two", "healed", {"lost": 9, "last_lost_s": 9.0}, True),
        (2, "one", "cut", {"lost": 1, "last_lost_s": 1.0}, True),
        (2, "two", "healed", {"lost": 1, "last_lost_s": 1.0}, True),
    ],
)
def test_requests_may_be_lost_only_where_the_link_is_cut_or_just_then(
    cut: int, host: str, when: str, changes: dict[str, Any], complains: bool
) -> None:
    facts: dict[str, Any] = json.loads(json.dumps(FACTS))  # the cuts share nothing
    facts["cuts"][cut]["clients"][host][when] = WELL | changes
    assert bool(list(verdict.complaints(facts))) is complains


def test_what_was_hit_is_told_from_the_cut_on() -> None:
    rows = [
        {"sent_s": 99.0, "took_s": 5.0, "good": True, "said": ""},
        {"sent_s": 104.0, "took_s": 0.1, "good": False, "said": "500"},
        {"sent_s": 110.0, "took_s": 0.1, "good": True, "said": ""},
    ]
    found = verdict.told(rows, 100.0)
    assert (found["served"], found["slow"], found["lost"]) == (2, 1, 1)
    assert (found["last_hit_s"], found["last_lost_s"], found["said"]) == (4.0, 4.0, ["500"])
