"""Halves of measured rows that are drawn anew share no measurement."""

from __future__ import annotations

from dataclasses import replace

import measured_halves
import pytest

from pdplugins.studies.measured.simulate import Felt
from tests.studies.measured.two_rows import ONE, TWO


def test_copies_of_a_measurement_stay_together() -> None:
    rows = [replace(row, clients=clients) for row in (ONE, TWO) for clients in range(1, 9)]
    rows += [replace(row, id=f"copy of {row.id}", ttft_s=1.1 * row.ttft_s) for row in rows]
    for seed in range(5):
        halves = measured_halves.drawn(rows, seed)
        assert sum(map(len, halves)) == len(rows)
        one, other = ({(row.mode, row.clients) for row in half} for half in halves)
        assert one
        assert other
        assert not one & other


def test_errors_are_medians_of_all_rows_and_of_the_disaggregated_ones() -> None:
    felt = [Felt(1.1 * ONE.ttft_s, ONE.tpot_s), Felt(0.7 * TWO.ttft_s, 1.2 * TWO.tpot_s)]
    found = measured_halves.errors("both", [ONE, TWO], felt)
    assert found["all"] == {"rows": 2, "ttft": pytest.approx(0.2), "tpot": pytest.approx(0.1)}
    assert found["disaggregated"] == {"rows": 1, "ttft": pytest.approx(0.3), "tpot": pytest.approx(0.2)}
    none = measured_halves.errors("one", [ONE], felt[:1])["disaggregated"]
    assert none == {"rows": 0, "ttft": None, "tpot": None}
