"""The map of docs/which-plugin.md is that of the results, and it advises what is simplest among what is level."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import manifest
import pytest
import which_plugin
from which_plugin import COLOCATED, SPLIT, Cell, cells, picture, rendered, summary


def cell(unit: str = "%", **values: float) -> Cell:
    names = {"colocated": COLOCATED, "split": SPLIT}
    return Cell("a kind", "<some> traffic", "8 H100", unit, {names.get(k, k): v for k, v in values.items()}, "compare")


def test_the_page_and_its_picture_are_those_of_the_results() -> None:
    """`python benchmarks/which_plugin.py` writes them again."""
    page = which_plugin.PAGE.read_text(encoding="utf-8")
    assert rendered(page) == page
    assert picture(cells()) == which_plugin.PICTURE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("one", "advised"),
    [
        (cell(colocated=99.6, split=99.9, arrow=100.0), COLOCATED),
        (cell(colocated=99.4, split=99.6, arrow=100.0), SPLIT),
        (cell(colocated=90.0, split=99.0, arrow=100.0), "arrow"),
        (cell(colocated=90.0, split=80.0, arrow=95.0, ampd=97.0), "ampd"),
        (cell(unit="requests/s", colocated=98.5, split=100.0, arrow=99.0), COLOCATED),
        (cell(unit="requests/s", colocated=97.5, split=90.0, arrow=100.0), "arrow"),
    ],
)
def test_the_simplest_of_what_is_level_is_advised(one: Cell, advised: str) -> None:
    assert one.advised == advised


def test_every_cell_has_a_plugin_and_both_kinds_of_stock() -> None:
    for one in cells():
        assert {COLOCATED, SPLIT} < set(one.values), one
        assert (manifest.RESULTS / f"{one.source}.json").exists()


def test_the_page_says_where_stock_wins() -> None:
    found = cells()
    stock = sum(one.advised in (COLOCATED, SPLIT) for one in found)
    assert summary(found).startswith(f"Of {len(found)} cells stock is as good as any plugin in {stock}.")
    assert stock > 0


def test_the_picture_is_described_and_nothing_breaks_out_of_it() -> None:
    root = ET.fromstring(picture([cell(colocated=50.0, split=20.0, arrow=100.0)]))  # noqa: S314 - our own
    assert root.attrib["role"] == "img"
    assert [child.tag.rpartition("}")[2] for child in root][:2] == ["title", "desc"]
    assert any("<some> traffic" in (text.text or "") for text in root.iter())


def test_fusions_matrix_is_taken_when_it_is_there(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = {
        "fusion": {"highest": [1.2, 1.4]},
        "co-located, best chunk": {"highest": [1.0, 1.0]},
        "best static split": {"highest": [0.5, 0.7]},
        "arrow": {"highest": [0.9, 0.9]},
    }
    data = {"cells": [{"cell": "h100 conversation middle", "capacities": [10.0, 10.0], "systems": systems}]}
    monkeypatch.setattr(manifest, "read", lambda name: data)
    monkeypatch.setattr(type(manifest.RESULTS), "exists", lambda path: True)
    (one,) = which_plugin._fusion()
    assert one.values == pytest.approx({"fusion": 13, COLOCATED: 10, SPLIT: 6, "arrow": 9})
    assert one.advised == "fusion"
