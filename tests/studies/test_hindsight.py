"""What fixed pools would have done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pdplugins.config import MOST_GPUS, find, load, parse
from pdplugins.studies import hindsight
from pdplugins.types import TraceRequest
from tests.command_line import invoke

pytestmark = pytest.mark.moderate
DOPD = load(find("dopd"))


def requests(per_s: float, count: int = 200) -> list[TraceRequest]:
    return [TraceRequest(index / per_s, 900, 60) for index in range(count)]


def test_light_load_needs_few_gpus_and_heavy_load_more() -> None:
    needed = []
    for rate in (1.0, 12.0):
        first, _ = hindsight.lines(DOPD, requests(rate), 4.0)
        found = re.search(r"(\d) GPUs would have done", first)
        assert found is not None, first
        needed.append(int(found[1]))
    assert needed[0] == 3
    assert needed[1] > needed[0]


def test_pools_are_judged_on_all_of_the_traffic() -> None:
    """Bursts may lie between the stretches on which splits are chosen."""
    times, now_s, bursts = [], 0.0, [(160, 340), (410, 590), (660, 840)]
    for index in range(1000):
        now_s += 0.005 if any(first <= index < last for first, last in bursts) else 1.0
        times.append(now_s)
    trace = [TraceRequest(at_s, 900, 60) for at_s in times]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hindsight, "MOST", 250)
        needed, same = hindsight.lines(DOPD, trace, 3.0)
    assert "3 GPUs would have done" not in needed
    assert "would have had 100" not in same


def test_gpus_that_no_pools_can_use_are_not_counted() -> None:
    """Workers of two GPUs each leave one of five."""
    even = parse(DOPD.model_dump(mode="json") | {"deployment": {"prefill": {"tp": 2}, "decode": {"tp": 2}}})
    _, same = hindsight.lines(even, requests(1.0), 5.2)
    assert "held 5.2 GPUs on the average; fixed pools of 4 (1P1D, TP 2)" in same


def test_fixed_pools_have_the_engines_of_the_run() -> None:
    """Behind a frontend that takes half a second for each request no number of GPUs helps."""
    slow = parse(DOPD.model_dump(mode="json") | {"simulation": {"frontend_s": 0.5}})
    assert "GPUs would have done" in hindsight.lines(DOPD, requests(4.0), 4.0)[0]
    assert "no fixed pools within 8 GPUs reach 99%" in hindsight.lines(slow, requests(4.0), 4.0)[0]


def test_the_report_is_written_although_nobody_reads_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def closed(*_: object) -> None:
        raise SystemExit(1)  # what rich does for a closed pipe

    monkeypatch.setattr("pdplugins.sim.report.terminal.show", closed)
    page = tmp_path / "r.html"
    words = ["simulate", "stock-round-robin", "--trace", "demo", "--max-requests", "20", "--html", str(page)]
    assert invoke(*words).exit_code == 1
    assert page.exists()


def test_pools_of_the_same_cost_are_named() -> None:
    _, same = hindsight.lines(DOPD, requests(1.0), 3.4)
    assert same == "This run held 3.4 GPUs on the average; fixed pools of 3 (1P1D, TP 1 and 2) would have had 100.0%"


def test_too_much_load_is_said() -> None:
    first, _ = hindsight.lines(DOPD, requests(500.0), 8.0)
    assert "no fixed pools within 8 GPUs reach 99%; the best (" in first


def test_ctrl_c_ends_it_and_says_nothing_of_what_had_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that is interrupted has the figures of its first requests."""
    simulate = hindsight.simulate

    def interrupted(*args: Any, **named: Any) -> Any:
        result, outcome = simulate(*args, **named)
        return result.model_copy(update={"interrupted": True}), outcome

    monkeypatch.setattr(hindsight, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hindsight.lines(DOPD, requests(1.0), 4.0)


def test_ctrl_c_in_it_leaves_the_report_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(hindsight, "lines", stopped)
    page = tmp_path / "r.html"
    words = ["simulate", "stock-round-robin", "--trace", "demo", "--max-requests", "20", "--html", str(page)]
    done = invoke(*words)
    assert done.exit_code == 130
    assert "20 requests" in done.stdout
    assert page.exists()


def test_very_many_gpus_are_tried_in_few_splits() -> None:
    data = DOPD.model_dump(mode="json")
    for gpus in (16, 1024, MOST_GPUS):
        data["deployment"]["gpu_budget"] = gpus
        cells = list(hindsight._Pools(parse(data), requests(1.0, 5))._cells(gpus))
        assert len(cells) == min(gpus // 2 - 1, hindsight.MOST_SPLITS)
        pools = [cell.config.deployment for cell in cells]
        assert {pool.prefill.replicas + 2 * pool.decode.replicas for pool in pools} == {gpus}
        assert {1, gpus // 2 - 1} <= {pool.decode.replicas for pool in pools}


def test_a_large_budget_is_not_tried_where_few_gpus_do(monkeypatch: pytest.MonkeyPatch) -> None:
    data = DOPD.model_dump(mode="json")
    data["deployment"]["gpu_budget"] = MOST_GPUS
    tried: list[int] = []
    best = hindsight._Pools.best

    def counted(self: hindsight._Pools, gpus: int) -> tuple[float, str] | None:
        tried.append(gpus)
        return best(self, gpus)

    monkeypatch.setattr(hindsight._Pools, "best", counted)
    first, _ = hindsight.lines(parse(data), requests(1.0), 4.0)
    assert "3 GPUs would have done" in first
    assert max(tried) <= 8
    data["slo"] = {"ttft_s": 1e-6, "tpot_s": 1e-6}
    first, _ = hindsight.lines(parse(data), requests(1.0, 5), 4.0)
    assert f"no fixed pools within {MOST_GPUS} GPUs reach 99%" in first
    assert max(tried) <= 5 * 3
