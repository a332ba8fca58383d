"""Workers that share a model in ways of their own: memory, guesses, imbalance, and the shipped profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdplugins.errors import ConfigError
from pdplugins.perf.gpus import GPUS
from pdplugins.perf.profile import Profile, Speculation, read_profile
from pdplugins.perf.table import TableModel
from pdplugins.resources import data_dir

ROOT = data_dir("profiles")
SHIPPED = {path.relative_to(ROOT).with_suffix("").as_posix(): read_profile(path) for path in ROOT.glob("*/*.json")}
LARGE = {name: profile for name, profile in SHIPPED.items() if profile.layouts}
DEEPSEEK = "h200/deepseek-r1"


def changed(profile: Profile, **changes: Any) -> Profile:
    return Profile.model_validate_json(json.dumps(json.loads(profile.model_dump_json(by_alias=True)) | changes))


def test_latent_attention_copies_its_cache_on_every_gpu_that_splits_it() -> None:
    tensor, data = LARGE[DEEPSEEK], LARGE[f"{DEEPSEEK}-dep"]
    assert tensor.memory.kv_bytes_per_token == data.memory.kv_bytes_per_token == 61 * 576  # FP8
    assert (tensor.layouts[8].kv_copies, data.layouts[8].kv_copies) == (8, 1)
    split, apart = (TableModel(profile).kv_capacity_tokens(8) for profile in (tensor, data))
    assert apart > 5 * split  # attention weights are copied instead, so not eight times as many


def test_layers_with_a_window_hold_little_of_a_long_context() -> None:
    profile = LARGE["h200/gpt-oss-120b"]
    window = profile.memory.window
    assert window is not None
    assert (window.tokens, window.bytes_per_token) == (128, profile.memory.kv_bytes_per_token)  # half of the layers
    assert window.held_bytes(64) == 64 * window.bytes_per_token
    assert window.held_bytes(8192) == 128 * window.bytes_per_token
    full = profile.memory.model_copy(update={"window": None})
    held = [TableModel(p).kv_capacity_tokens(4) for p in (profile, profile.model_copy(update={"memory": full}))]
    assert held[0] == pytest.approx(held[1] / (1 + 128 / 2048), abs=1)
    moved_s = TableModel(profile).transfer_s(8192) - TableModel(profile).transfer_s(4096)
    assert moved_s == pytest.approx(4096 * profile.memory.kv_bytes_per_token / profile.transfer.bytes_per_s)


def test_guesses_widen_a_step_and_are_paid_back_by_those_that_are_right() -> None:
    guesses = Speculation(draft_tokens=3, acceptance=0.5, draft_share=0.02)
    assert guesses.tokens_per_step == 1 + 0.5 + 0.25 + 0.125
    profile = LARGE[DEEPSEEK]
    plain, guessing = TableModel(profile), TableModel(profile.model_copy(update={"speculation": guesses}))
    step_s = plain.decode_step_s(4 * 16, 2048, 8) * 1.06
    assert guessing.decode_step_s(16, 2048, 8) == pytest.approx(step_s / 1.875)
    assert guessing.prefill_s(2048, 8) == plain.prefill_s(2048, 8)


def test_an_imbalance_of_experts_lengthens_their_part_of_every_step() -> None:
    profile = LARGE[DEEPSEEK]
    experts = profile.experts[8]
    uneven = changed(profile, scale=profile.scale.model_dump(mode="json") | {"expert_imbalance": 1.5})
    before, after = TableModel(profile), TableModel(uneven)
    tokens, ms = experts.prefill.tokens[-1], experts.prefill.raw_ms[-1]
    assert after.prefill_s(tokens, 8) - before.prefill_s(tokens, 8) == pytest.approx(ms / 2 / 1e3)
    assert after.dense_s(tokens, 8) - before.dense_s(tokens, 8) == pytest.approx(ms / 2 / 1e3)  # type: ignore[operator]
    batch, ms = experts.decode.tokens[0], experts.decode.raw_ms[0]
    assert after.decode_step_s(batch, 64, 8) - before.decode_step_s(batch, 64, 8) == pytest.approx(ms / 2 / 1e3)


@pytest.mark.parametrize(
    ("layouts", "said"),
    [
        ({"4": {"tensor": 8, "expert": 8, "model_bytes": 1}}, "layouts has 8 GPUs under 4"),
        ({"8": {"tensor": 8, "expert": 4, "model_bytes": 1}}, "expert_tensor times expert"),
    ],
)
def test_layouts_that_do_not_add_up_are_refused(tmp_path: Path, layouts: dict[str, Any], said: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(json.loads(LARGE[DEEPSEEK].model_dump_json(by_alias=True)) | {"layouts": layouts}))
    with pytest.raises(ConfigError, match=said):
        read_profile(path)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_profile_is_sound(name: str) -> None:
    profile = LARGE[name]
    perf, gpu = TableModel(profile), GPUS[name.split("/", maxsplit=1)[0]]
    assert set(profile.layouts) == set(profile.prefill) == set(profile.decode) == set(profile.dense)
    for gpus, layout in profile.layouts.items():
        assert perf.kv_capacity_tokens(gpus) > 10_000
        # A large batch touches every expert, so its step reads all weights that no GPU shares.
        read_s = layout.model_bytes / gpus / gpu.bytes_per_s
        assert perf.decode_step_s(512, 64, gpus) > 0.8 * read_s
        assert perf.prefill_s(8192, gpus) > perf.dense_s(8192, gpus) > 0  # type: ignore[operator]


def test_what_people_disaggregate_is_shipped_for_every_gpu_with_tables() -> None:
    models = {"deepseek-r1", "qwen3-235b-a22b", "qwen3-coder-480b", "llama-3.1-405b"}
    for gpu in ("h100", "h200", "b200", "gb200"):
        names = {name.removeprefix(f"{gpu}/") for name in LARGE if name.startswith(f"{gpu}/")}
        assert all(any(name.startswith(model) for name in names) for model in models), gpu
    assert {"h100/gpt-oss-120b", "h200/gpt-oss-120b"} <= set(LARGE)


@pytest.mark.parametrize("name", LARGE)
def test_a_committed_command_wrote_it(name: str) -> None:
    commands = Path("benchmarks/profiles/large.sh")
    if not commands.is_file():
        pytest.skip("needs the repository, not an installed package")
    short = name.split("/")[1]
    assert f"/{short} " in commands.read_text(encoding="utf-8")
    assert f"--out profiles/{name}.json" in LARGE[name].provenance.command
    assert "/bin/python" not in LARGE[name].provenance.command
