"""The report of a replay as one HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdplugins import verdict
from pdplugins.contracts.request import Slo
from pdplugins.report import runs
from pdplugins.report.ranking import Run
from pdplugins.report.series import series_of_rows
from pdplugins.results import Result, Scaling


def page(result: Result, rows: Sequence[tuple[float | None, ...]]) -> str:
    """Return the page of a run.

    :param rows: (arrival, prompt tokens, output tokens, TTFT, TPOT) of each request.
    """
    slo = Slo(result.config["slo"]["ttft_s"], result.config["slo"]["tpot_s"])
    pools = result.config["deployment"]
    first = Scaling(
        at_s=0.0,
        prefill=pools["prefill"]["replicas"],
        decode=pools["decode"]["replicas"],
        reason="workers at start",
    )
    scaling = [first, *result.scaling]
    changes = [(change.at_s, change.prefill, change.decode) for change in scaling]
    arrival_s, _, _, ttft_s, tpot_s = np.array(rows, dtype=float).reshape(len(rows), 5).T
    starting = list(verdict.starting_spells(changes, pools["startup_s"]))
    missed = verdict.missed(verdict.Times(arrival_s, ttft_s, tpot_s), slo, starting)
    series = series_of_rows(rows, slo, scaling)
    return runs.page([Run(result.config["run"]["planner"], result, series, missed)])
