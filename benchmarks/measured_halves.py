"""Fidelity beside measured rows of mixtures of experts, where other rows are fitted on than those that are published.

    python benchmarks/measured_halves.py --traces DIR

`pdplugins validate measured` has two fixed halves. Here the rows are drawn anew into two halves, by several seeds; rows
that differ in their latencies only stay together. And each source of the half that is fitted on is predicted from all
others. Choices were made on rows of the fixed half, which are in both halves of each draw.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import manifest
import numpy as np
from experiment import Row, command, save

from pdplugins.provenance import record
from pdplugins.studies.measured.report import fit, predict, split
from pdplugins.studies.measured.rows import Row as Measured
from pdplugins.studies.measured.rows import read_rows
from pdplugins.studies.measured.simulate import Felt

NAME, FILE = "measured-halves", "silicon_half.csv"
DRAWS = 4


def drawn(rows: Sequence[Measured], seed: int) -> tuple[list[Measured], list[Measured]]:
    """Return two halves of the rows."""
    alike = defaultdict[Any, list[Measured]](list)
    for row in rows:
        alike[row.source, row.isl_tokens, row.osl_tokens, row.clients, row.pools].append(row)
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    halves: tuple[list[Measured], list[Measured]] = ([], [])
    for some in alike.values():
        halves[dice.random() < 0.5].extend(some)
    return halves


def errors(what: str, rows: Sequence[Measured], felt: Sequence[Felt]) -> Row:
    """Return the median absolute errors of all rows, and of the disaggregated ones."""
    off = np.array(
        [(one.ttft_s / row.ttft_s - 1, one.tpot_s / row.tpot_s - 1) for row, one in zip(rows, felt, strict=True)]
    )
    found: Row = {"what": what}
    for name, some in (("all", off), ("disaggregated", off[[row.mode == "disaggregated" for row in rows]])):
        ttft, tpot = np.median(np.abs(some), axis=0) if len(some) else (None, None)
        found[name] = {"rows": len(some)} | {
            key: None if value is None else round(float(value), 4) for key, value in (("ttft", ttft), ("tpot", tpot))
        }
    return found


def draws(rows: Sequence[Measured]) -> Iterator[Row]:
    """Yield the errors of one half of each draw, with the coefficients of the other."""
    for seed in range(DRAWS):
        fitted, held = drawn(rows, seed)
        yield errors(f"halves drawn by seed {seed}", held, predict(held, fit(fitted, 0), 0))


def left_out(rows: Sequence[Measured]) -> Row:
    """Return the errors of each source with the coefficients of the others."""
    mine, felt = list[Measured](), list[Felt]()
    for source in sorted({row.source for row in rows}):
        some = [row for row in rows if row.source == source]
        mine += some
        felt += predict(some, fit([row for row in rows if row.source != source], 0), 0)
    return errors("each source from the others", mine, felt)


def main() -> None:
    """Fit, predict, and write ``results/measured-halves.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help=f"folder that holds {FILE}")
    if (path := manifest.place(FILE, parser.parse_args().traces)) is None:
        parser.error(f"no {FILE} there")
    rows, _ = split(*read_rows(path))
    found = [*draws(rows), left_out([row for row in rows if row.fitted])]
    save(NAME, {**record("simulated", seed=0, command=command()), "rows": found})


if __name__ == "__main__":
    main()
