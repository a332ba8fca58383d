"""What the simulator is told of real SGLang servers gives back what was measured of them while they were idle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sglang_simulated
import yaml
from idle_server import BATCHES, CONTEXTS, ENDS, PROMPTS, SOME_TRANSFER, Engine, Idle, Pace
from sglang_simulated import LAYOUTS, Layout

from benchmarks.rig.load import Ask

TTFT_MS = (21.4, 32.4, 44.4, 66.6, 130.6, 292.8, 471.8)
"""Of `PROMPTS`, from one server."""
STEPS_MS = [[6.3, 7.3, 8.2], [7.0, 8.2, 9.5], [8.6, 10.8, 13.0], [11.2, 14.1, 17.2], [13.9, 21.5, 33.2]]
GATEWAY_S = 0.002
TRANSFER_S = (0.008, 5e-5)


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
    return Idle(engine(), {"unified": unified, "PD": pair}, direct[0])


def told(layout: Layout, folder: Path, slower: tuple[float, float] = (1.0, 1.0)) -> Path:
    """Write what the simulator is told of a layout."""
    found = idle()
    transfer = found.transfer(layout.name) if layout.name in ("PD", "dual") else SOME_TRANSFER
    outside_s = found.gateway_s + engine().outside_ms / 1e3
    profile, config = folder / "engine.json", folder / "config.yaml"
    profile.write_text(json.dumps(engine().profile(transfer, slower)))
    config.write_text(yaml.safe_dump(layout.config(profile, outside_s)))
    return config


@pytest.mark.parametrize("tokens", PROMPTS)
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=lambda layout: layout.name)
def test_a_lone_request_takes_what_was_measured(layout: Layout, tokens: int, tmp_path: Path) -> None:
    """Of prompts of any number of chunks: what each chunk takes at least is not counted twice."""
    said = sglang_simulated.predicted([(told(layout, tmp_path), [Ask(0.0, tokens, 8)])])
    wanted_ms = TTFT_MS[PROMPTS.index(tokens)] + 1e3 * GATEWAY_S
    if layout.name == "PD":
        wanted_ms += 1e3 * (TRANSFER_S[0] + tokens * TRANSFER_S[1])
    assert said["ttft_ms"] == pytest.approx(wanted_ms, rel=0.03)
    assert STEPS_MS[0][0] - 0.2 < said["tpot_ms"] < 10.5


def test_beside_a_busy_neighbour_each_phase_is_slower_by_its_factor(tmp_path: Path) -> None:
    asks = [Ask(0.0, 64, 30)]
    alone = sglang_simulated.predicted([(told(LAYOUTS[0], tmp_path), asks)])
    slower = Pace(0.12, 0.0065).slower_than(Pace(0.1, 0.005))
    beside = sglang_simulated.predicted([(told(LAYOUTS[0], tmp_path, slower), asks)])
    assert beside["tpot_ms"] == pytest.approx(1.3 * alone["tpot_ms"], rel=0.01)
    outside_ms = 1e3 * GATEWAY_S + engine().outside_ms
    assert beside["ttft_ms"] - outside_ms == pytest.approx(1.2 * (alone["ttft_ms"] - outside_ms), rel=0.02)


def test_a_row_says_by_how_much_the_prediction_is_off(tmp_path: Path) -> None:
    asks, config = [Ask(0.0, 256, 8), Ask(1.0, 256, 8)], told(LAYOUTS[0], tmp_path)
    said = sglang_simulated.predicted([(config, asks)])
    heard = [sglang_simulated.Heard(ask, 2 * said["ttft_ms"] / 1e3, said["tpot_ms"] / 1e3) for ask in asks]
    part = sglang_simulated.Part(asks, [heard[0], sglang_simulated.Heard(asks[1])], config, (1.0, 1.0))
    run = sglang_simulated.Run([part], waited=0.1)
    row = sglang_simulated.row("unified", 0.3, [run])
    assert (row["requests"], row["failed"], row["waited"]) == (1, 1, 0.1)
    assert row["ttft"]["off"] == pytest.approx(-0.5, abs=0.01)
    assert row["tpot"]["off"] == pytest.approx(0, abs=0.01)


def test_the_pace_of_a_profile_is_what_it_says_of_the_requests_that_a_pace_is_measured_with() -> None:
    """512 prompt tokens; a stream whose mean context is 138, between 64 and 512."""
    pace = engine().pace
    assert pace.ttft_s == pytest.approx(0.1306)
    assert pace.tpot_s == pytest.approx((6.3 + (138 - 64) / (512 - 64) * (7.3 - 6.3)) / 1e3)
