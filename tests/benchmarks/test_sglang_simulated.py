"""What the simulator is told of real SGLang servers gives back what was measured of them while they were idle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sglang_simulated
import yaml
from idle_server import (
    AS_FAST,
    BATCHES,
    CONTEXTS,
    ENDS,
    LONG,
    PROMPT,
    PROMPTS,
    SHORT,
    SOME_TRANSFER,
    Engine,
    Idle,
    Pace,
    Slower,
)
from sglang_simulated import LAYOUTS, Layout

from benchmarks.rig.load import Ask, Heard
from benchmarks.rig.speed import Clock, Speed

TTFT_MS = (21.4, 32.4, 44.4, 66.6, 130.6, 292.8, 471.8)
"""Of `PROMPTS`, from one server."""
STEPS_MS = [[6.3, 7.3, 8.2], [7.0, 8.2, 9.5], [8.6, 10.8, 13.0], [11.2, 14.1, 17.2], [13.9, 21.5, 33.2]]
GATEWAY_S = 0.002
TRANSFER_S = (0.008, 5e-5)
LATE_S = (0.004, 0.003, 2e-5)
"""Of a late hand-over: its way, its step beyond one of a token, and that for each token of the prompt."""
STEADY = (Clock([1.0], 1.0), Clock([1.0], 1.0))
"""Of a machine that is as fast all the time."""


def engine() -> Engine:
    head = {
        "schema": 1, "gpu": "CPU", "model": "random Llama", "kind": "measured",
        "provenance": {"source": "a test", "command": "none"},
        "bandwidth": {"bytes_per_s": 1e10, "utilisation": 1.0, "source": "assumed"},
        "scale": {"prefill": 1.0, "decode": 1.0, "source": "a test"},
        "prefill": {"1": {"tokens": list(PROMPTS), "raw_ms": list(TTFT_MS)}},
        "decode": {
            "1": {
                "batch": list(BATCHES), "context_tokens": list(CONTEXTS),
                "raw_ms": STEPS_MS,
            }
        },
    }  # fmt: skip
    return Engine(head)


def idle() -> Idle:
    """Servers whose gateway and hand-overs take what is said above."""
    direct = [TTFT_MS[PROMPTS.index(tokens)] / 1e3 for tokens in ENDS]
    unified = [s + GATEWAY_S for s in direct]
    pair = [s + TRANSFER_S[0] + tokens * TRANSFER_S[1] for s, tokens in zip(unified, ENDS, strict=True)]
    step_s = [STEPS_MS[0][0] / 1e3 + LATE_S[1] + tokens * LATE_S[2] for tokens in ENDS]
    late = [s + LATE_S[0] + more_s for s, more_s in zip(pair, step_s, strict=True)]
    busy = {
        "unified": [s + STEPS_MS[0][0] / 1e3 for s in direct],
        "PD": direct,
        "dual": [s + more_s for s, more_s in zip(direct, step_s, strict=True)],
    }
    return Idle(engine(), {"unified": unified, "PD": pair, "dual": late}, busy, direct[0])


def told(layout: Layout, folder: Path, slower: Slower = AS_FAST) -> Path:
    """Write what the simulator is told of a layout."""
    found = idle()
    transfer = found.transfer("PD") if layout.name in ("PD", "dual") else SOME_TRANSFER
    profile, config = folder / "engine.json", folder / "config.yaml"
    profile.write_text(json.dumps(engine().profile(transfer, slower)))
    config.write_text(
        yaml.safe_dump(layout.config(profile, found.besides, found.late("PD", "dual") if layout.late else None))
    )
    return config


@pytest.mark.parametrize("tokens", PROMPTS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_lone_request_takes_what_was_measured(layout: Layout, tokens: int, tmp_path: Path) -> None:
    """Of prompts of any number of chunks: what each chunk takes at least is not counted twice."""
    said = sglang_simulated.predicted(told(layout, tmp_path), [Ask(0.0, tokens, 8)], STEADY)
    wanted_ms = TTFT_MS[PROMPTS.index(tokens)] + 1e3 * GATEWAY_S
    if layout.name != "unified":
        wanted_ms += 1e3 * (TRANSFER_S[0] + tokens * TRANSFER_S[1])
    if layout.late:
        wanted_ms += STEPS_MS[0][0] + 1e3 * (LATE_S[0] + LATE_S[1] + tokens * LATE_S[2])
    assert said["ttft_ms"] == pytest.approx(wanted_ms, rel=0.03)
    assert STEPS_MS[0][0] - 0.2 < said["tpot_ms"] < 10.5


def test_beside_a_busy_neighbour_each_phase_is_slower_by_its_factor(tmp_path: Path) -> None:
    """Decode steps of a batch of one have another factor than those of larger batches."""
    slower = Pace(0.12, 0.0065, 0.0055).slower_than(Pace(0.1, 0.005, 0.005))
    outside_ms = 1e3 * GATEWAY_S + engine().outside_ms
    one, many = [Ask(0.0, 64, 30)], [Ask(0.0, 64, 30)] * 8
    for asks, factor in ((one, 1.3), (many, 1.1)):
        alone, beside = (
            sglang_simulated.predicted(told(LAYOUTS[0], tmp_path, by), asks, STEADY) for by in (AS_FAST, slower)
        )
        assert beside["tpot_ms"] == pytest.approx(factor * alone["tpot_ms"], rel=0.01)
        if asks is one:
            wanted_ms = 1.2 * (alone["ttft_ms"] - outside_ms)
            assert beside["ttft_ms"] - outside_ms == pytest.approx(wanted_ms, rel=0.02)


def test_the_later_steps_of_a_stream_are_those_that_a_long_answer_has_more() -> None:
    """Of 19 gaps of 8 ms after a pause, and of 80 more, each of 7."""
    long_s = (19 * 0.008 + 80 * 0.007) / 99
    pace = Pace.heard([Heard(PROMPT, 0.1, 0.0)], [Heard(SHORT, 0.02, 0.008)], [Heard(LONG, 0.02, long_s), Heard(LONG)])
    assert (pace.ttft_s, pace.fresh_s, pace.tpot_s) == pytest.approx((0.1, 0.008, 0.007))


def test_on_a_machine_that_becomes_slower_a_phase_takes_longer_from_then_on(tmp_path: Path) -> None:
    """In the second half of ten seconds computing takes three times as long as before; memory is as fast as ever."""
    asks, config = [Ask(2.0, 512, 8), Ask(7.0, 512, 8)], told(LAYOUTS[0], tmp_path)
    steady, slower = STEADY[0], Clock([1.0] * 5 + [3.0] * 5, 1.0)
    ttfts = [sglang_simulated.predicted(config, [ask], (slower, steady))["ttft_ms"] for ask in asks]
    alone = sglang_simulated.predicted(config, asks, STEADY)
    assert ttfts[1] == pytest.approx(3 * ttfts[0], rel=0.001)
    assert ttfts[0] == pytest.approx(alone["ttft_ms"] * 2 / 3, rel=0.001), "over all it is as fast as the profile says"
    both = sglang_simulated.predicted(config, asks, (slower, steady))
    assert both["tpot_ms"] == pytest.approx(alone["tpot_ms"], rel=0.001)


def test_a_row_says_by_how_much_the_prediction_is_off(tmp_path: Path) -> None:
    asks, config = [Ask(0.0, 256, 8), Ask(1.0, 256, 8)], told(LAYOUTS[0], tmp_path)
    said = sglang_simulated.predicted(config, asks, STEADY)
    heard = [sglang_simulated.Heard(ask, 2 * said["ttft_ms"] / 1e3, said["tpot_ms"] / 1e3) for ask in asks]
    heard[1] = sglang_simulated.Heard(asks[1])
    run = sglang_simulated.Run(asks, heard, Speed(1e-4, 1e-3), STEADY, Pace(1e3, 10.0, 10.0), idle(), waited=0.1)
    row = sglang_simulated.row("unified", 0.3, [run], [said])
    assert (row["requests"], row["failed"], row["waited"]) == (1, 1, 0.1)
    assert row["ttft"]["off"] == pytest.approx(-0.5, abs=0.01)
    assert row["tpot"]["off"] == pytest.approx(0, abs=0.01)


def test_how_much_slower_a_run_is_comes_from_all_rounds_at_the_speed_of_the_machine_meanwhile() -> None:
    """A prompt takes 900 or 1,100 pieces of work, and a token 10 or 14, later 8 or 10; a piece takes 0.2 or 1.5 ms."""
    paces = [Pace(0.09, 0.01, 0.008).per(Speed(1e-4, 1e-3)), Pace(0.22, 0.007, 0.005).per(Speed(2e-4, 5e-4))]
    run = sglang_simulated.Run([], [], Speed(2e-4, 1.5e-3), STEADY, paces[0], idle(), waited=0.0)
    of = engine().pace
    assert run.slower(paces) == pytest.approx((0.2 / of.ttft_s, 0.018 / of.fresh_s, 0.0135 / of.tpot_s))


def test_the_pace_of_a_profile_is_what_it_says_of_the_requests_that_a_pace_is_measured_with() -> None:
    """512 prompt tokens; streams with a mean context of 138, and of 188 later, between 64 and 512."""
    pace = engine().pace
    assert pace.ttft_s == pytest.approx(0.1306)
    assert pace.fresh_s == pytest.approx((6.3 + (138 - 64) / (512 - 64) * (7.3 - 6.3)) / 1e3)
    assert pace.tpot_s == pytest.approx((6.3 + (188 - 64) / (512 - 64) * (7.3 - 6.3)) / 1e3)
