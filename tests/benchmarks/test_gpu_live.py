"""The traffic of gpu_live.py, and what it makes of the steps and decisions that a server writes."""

import argparse
import json
import statistics
from types import SimpleNamespace

import gpu_live
import pytest

from benchmarks.rig.load import Slo
from benchmarks.rig.switch import Switch, sizes


def test_traffic_has_the_rate_and_the_lengths_that_the_page_names() -> None:
    asks = gpu_live.poisson(10.0, 600.0, 0, 1)
    assert len(asks) / 600 == pytest.approx(10, rel=0.05)
    assert statistics.fmean(ask.prompt_tokens for ask in asks) == pytest.approx(3000, rel=0.05)
    assert statistics.fmean(ask.output_tokens for ask in asks) == pytest.approx(150, rel=0.05)
    assert max(ask.prompt_tokens for ask in asks) <= 16_000
    assert gpu_live.poisson(10.0, 600.0, 0, 1) == asks


def test_every_side_runs_at_a_rate_before_the_next_rate() -> None:
    options = argparse.Namespace(seed=0, rounds=1, loads=[0.9, 1.2], sides=list(gpu_live.SIDES), apart=False)
    found = gpu_live.cells(options)
    assert [cell.load for cell in found] == [0.9] * 5 + [1.2] * 5
    assert {cell.side for cell in found[:5]} == {*gpu_live.SIDES}


def test_steps_are_told_by_kind(tmp_path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("[512, 0, 12.0]\n[512, 8, 16.0]\n[256, 9, 30.0]\n[0, 9, 9.0]\n[0, 9")
    found = gpu_live.steps_of(path, Slo(2.0, 0.02))
    assert (found["steps"], found["prefill_steps"], found["mixed_steps"]) == (4, 3, 2)
    assert (found["mixed_over_tpot"], found["decode_over_tpot"], found["decodes_most"]) == (0.5, 0.0, 9)


def test_decisions_are_counted_from_where_it_was_last_asked(tmp_path) -> None:
    def line(number: int, fault: str | None = None) -> str:
        return json.dumps({"kind": "batch_scheduler", "n": number, "fault": fault, "step_s": 1e-4}) + "\n"

    log, decisions = tmp_path / "engine-7.jsonl", gpu_live.Decisions(tmp_path)
    log.write_text('{"schema": 2}\n' + line(10) + line(20))
    assert decisions.new() == {"decisions": 20, "faults": 0, "decision_us": 100.0}
    assert decisions.new() == {}
    with log.open("a") as more:
        more.write('{"schema": 2}\n' + line(10) + line(13, "raised"))
    assert decisions.new() == {"decisions": 13, "faults": 1, "decision_us": 100.0}


def test_cells_of_a_second_run_join_those_of_the_first(tmp_path) -> None:
    def row(side: str, load: float, attainment: float) -> dict[str, object]:
        return {"side": side, "load": load, "round": 0, "attainment": attainment}

    more = tmp_path / "more.json"
    more.write_text(json.dumps({"rows": [row("fusion", 1.5, 0.5)]}))
    rows = [row("chunk 8192", 1.5, 0.1), row("chunk 2048", 0.6, 0.6)]
    found = {"rows": rows, "seconds": 20.0, "sides": {"chunk 8192": {}, "fusion": {}}}
    told = gpu_live.joined(found, more)
    assert [(one["server"], one["side"]) for one in found["rows"]] == [
        (0, "chunk 2048"), (0, "chunk 8192"), (1, "fusion"),
    ]  # fmt: skip
    assert told["summary"][1] == {"load": 1.5, "attainment": {"chunk 8192": 0.1, "fusion": 0.5}, "best_alone": 0.1}
    assert told["command"].endswith("benchmarks/gpu_live.py --out live.json --seconds 20 --sides 'chunk 8192;fusion'")


class Mode:
    def __init__(self, decode: bool) -> None:
        self._decode = decode

    def is_decode(self) -> bool:
        return self._decode

    def is_extend(self) -> bool:
        return not self._decode


def test_an_idle_engine_takes_the_settings_of_the_side_that_is_on(tmp_path) -> None:
    on, steps = tmp_path / "switch.json", tmp_path / "steps.jsonl"
    on.write_text(json.dumps({"chunk": 512, "mixed": True, "config": None, "steps": str(steps)}))
    switch = Switch(on)
    scheduler = SimpleNamespace(waiting_queue=[1], chunked_req=None, chunked_prefill_size=8192, is_mixed_chunk=False)
    busy = SimpleNamespace(is_empty=lambda: False)
    assert switch.new_prefill(lambda *_: "SGLang's", scheduler, busy) == "SGLang's"
    assert scheduler.chunked_prefill_size == 8192
    switch.new_prefill(lambda *_: None, scheduler, SimpleNamespace(is_empty=lambda: True))
    assert (scheduler.chunked_prefill_size, scheduler.is_mixed_chunk) == (512, True)
    batch = SimpleNamespace(forward_mode=Mode(False), reqs=[1, 2, 3], decoding_reqs=[2, 3], extend_lens=[500, 1, 1])
    assert sizes(batch, 0.0) == (500, 2, 0.0)
    switch.run(lambda *_: None, scheduler, batch)
    switch.completed(lambda *_: None, scheduler, batch, None)
    assert json.loads(steps.read_text())[:2] == [500, 2]
