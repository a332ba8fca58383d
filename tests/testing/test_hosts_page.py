"""docs/writing-a-host.md lists every seam, and where each host fills it, as the hosts' tests declare it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pdplugins.testing.hosts import Seam
from tests.gateway import host as gateway
from tests.hosts.dynamo import scenarios as dynamo

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs/writing-a-host.md").read_text().splitlines()
TABLE = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("|")]
ROWS = {row[0].strip("`"): row for row in TABLE if len(row) == 6 and row[0].startswith("`")}
REASONS = {(row[0], row[1]): re.findall(r"`(\w+)`", row[2]) for row in TABLE if len(row) == 3}
HOSTS: list[tuple[str, int, Mapping[Seam, str]]] = [
    ("simulator", 3, {}),
    ("gateway", 4, gateway.NOT_FILLED),
    ("Dynamo", 5, dynamo.NOT_FILLED),
]


def test_each_seam_has_one_line_in_order() -> None:
    assert [(name, row[1]) for name, row in ROWS.items()] == [(seam.name, str(seam)) for seam in Seam]


@pytest.mark.parametrize("seam", Seam)
def test_the_contract_of_a_seam_is_there(seam: Seam) -> None:
    module, name = ROWS[seam.name][2].strip("`").split(".")
    assert hasattr(importlib.import_module(f"pdplugins.contracts.{module}"), name)


@pytest.mark.parametrize(("host", "column", "not_filled"), HOSTS, ids=[host for host, *_ in HOSTS])
def test_the_files_that_fill_a_seam_are_there(host: str, column: int, not_filled: Mapping[Seam, str]) -> None:
    for seam in Seam:
        cell = ROWS[seam.name][column]
        assert (cell == "-") is (seam in not_filled), (host, seam.name)
        assert [path for path in re.findall(r"`(.+?)`", cell) if not (ROOT / "pdplugins" / path).is_file()] == []
        assert cell == "-" or "`" in cell, (host, seam.name)


@pytest.mark.parametrize(("host", "column", "not_filled"), HOSTS, ids=[host for host, *_ in HOSTS])
def test_the_reasons_are_those_that_the_hosts_declare(host: str, column: int, not_filled: Mapping[Seam, str]) -> None:
    listed = {Seam[name]: reason for (who, reason), names in REASONS.items() if who == host for name in names}
    assert listed == not_filled
