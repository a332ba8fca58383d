"""The rule that says whether an engine has a place for every client, on rows whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdplugins.studies.validate.places import FEWEST_PAIRS, Places, places_of
from pdplugins.studies.validate.rows import Row
from pdplugins.studies.validate.silicon import Setup, kv_tokens_of, simulate
from tests.studies.validate.measured import ROW

SHAPES = [(isl, osl, tp) for isl in (512, 2048) for osl in (64, 160, 320) for tp in (1, 4)]


def rows(one_less: bool, clients: int = 4) -> list[Row]:
    """Return rows that the simulator has measured on an engine with all places, or with one less."""
    setup = Setup(one_less=frozenset([ROW.source] if one_less else []))
    bare = [replace(ROW, id=str(s), isl_tokens=s[0], osl_tokens=s[1], tp=s[2], clients=clients) for s in SHAPES]
    felt = [simulate(row, setup) for row in bare]
    return [replace(row, ttft_s=f.ttft_s, tpot_s=f.tpot_s) for row, f in zip(bare, felt, strict=True)]


@pytest.mark.parametrize("one_less", [False, True])
def test_the_rule_finds_what_made_the_rows(one_less: bool) -> None:
    found = places_of(rows(one_less), kv_tokens_of)[ROW.source]
    assert found.one_less is one_less
    assert found.pairs == 12
    assert found.slope == pytest.approx(1.0 if one_less else 0.0, abs=0.2)


def test_a_few_pairs_say_nothing() -> None:
    assert Places(FEWEST_PAIRS, 0.9).one_less
    assert not Places(FEWEST_PAIRS - 1, 0.9).one_less
    assert not Places(99, 0.4).one_less
    assert not Places(0, None).one_less


def test_rows_whose_clients_wait_for_kv_cache_or_are_alone_say_nothing() -> None:
    assert places_of(rows(one_less=True), lambda _: 4 * (2048 + 64)) != places_of(rows(one_less=True), kv_tokens_of)
    assert places_of(rows(one_less=True), lambda _: 4) == {}
    assert places_of(rows(one_less=False, clients=1), kv_tokens_of) == {}
