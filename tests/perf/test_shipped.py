"""Every shipped profile: sound in itself, no faster than its GPU can be, and listed in the docs for what it is."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pdplugins.perf.gpus import GPUS
from pdplugins.perf.profile import read_profile
from pdplugins.perf.roofline import Roofline
from pdplugins.perf.shapes import KNOWN
from pdplugins.perf.steps import step_model
from pdplugins.perf.table import TableModel
from pdplugins.resources import data_dir
from pdplugins.types import Role

ROOT = data_dir("profiles")
PATHS = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in sorted(ROOT.glob("*/*.json"))}
PROFILES = {name: read_profile(path) for name, path in PATHS.items()}
COMPUTED = [name for name, profile in PROFILES.items() if profile.kind == "modelled" and not profile.layouts]
LAYOUTS = [name for name, profile in PROFILES.items() if profile.layouts]
DEMANDED = {
    "a100/llama-3.1-8b",
    "a100/qwen2.5-14b",
    "a100/qwen2.5-32b",
    "a100/qwen2.5-72b",
    "h100/llama-3.1-70b-fp8",
    "h100/llama-3.1-8b",
    "h100/opt-30b",
    "h100/qwen3-32b",
    "h20/llama-3.1-70b",
    "h20/mixtral-8x7b",
    "h20/qwen3-32b",
    "h200/llama-3.1-8b",
    "h800/llama-3.1-8b",
    "mi300x/llama-3.1-8b",
}


def peak(name: str, tp: int) -> Roofline:
    """Return what the device could do at best."""
    profile = PROFILES[name]
    shape = KNOWN[profile.model]
    if any("FP8 KV cache" in note for note in profile.provenance.notes):
        shape = replace(shape, kv_heads=shape.kv_heads // 2)  # half of the bytes
    return Roofline(shape, GPUS[name.split("/", maxsplit=1)[0]], tp).peak()


def test_what_the_papers_ran_on_is_shipped() -> None:
    assert set(PROFILES) >= DEMANDED


@pytest.mark.parametrize("name", COMPUTED)
def test_no_step_is_faster_than_the_peaks_of_the_gpu(name: str) -> None:
    perf = TableModel(PROFILES[name])
    for tp in perf.tp_sizes(Role.PREFILL):
        best = peak(name, tp)
        for tokens in PROFILES[name].prefill[tp].tokens:
            assert perf.prefill_s(tokens, tp) >= best.dense_s(tokens) + best.prompt_attention_s(tokens)
    for tp, table in PROFILES[name].decode.items():
        best = peak(name, tp)
        for batch in table.batch:
            for context in table.context_tokens:
                step_s = perf.decode_step_s(batch, context, tp)
                assert step_s >= 0.995 * (best.dense_s(batch) + best.decode_attention_s(batch, context)), (
                    batch,
                    context,
                )


@pytest.mark.parametrize("name", COMPUTED)
def test_usual_steps_are_within_a_few_times_the_peaks(name: str) -> None:
    """With the all-reduces over the links that there are: at TP 8 on an H800 they take most of the step."""
    perf = TableModel(PROFILES[name])
    link_bytes_per_s = GPUS[name.split("/", maxsplit=1)[0]].link_bytes_per_s
    for tp in perf.tp_sizes(Role.PREFILL):
        best = peak(name, tp)
        best = replace(best, gpu=replace(best.gpu, link_bytes_per_s=link_bytes_per_s))
        assert perf.prefill_s(2048, tp) < 5 * (best.dense_s(2048) + best.prompt_attention_s(2048))
        assert perf.decode_step_s(64, 2048, tp) < 5 * (best.dense_s(64) + best.decode_attention_s(64, 2048))


@pytest.mark.parametrize("name", COMPUTED)
def test_the_dense_table_is_a_part_of_the_prefill_table(name: str) -> None:
    profile = PROFILES[name]
    perf = TableModel(profile)
    assert set(profile.dense) == set(profile.prefill) == set(profile.decode)
    for tp, table in profile.prefill.items():
        knots = (0, *map(round, table.tokens), round(2 * table.tokens[-1]))
        attention = [step_model(perf, tp).attention(t) for t in knots]
        assert attention[0] >= 0
        assert all(b >= a - 1e-9 for a, b in pairwise(attention))


@pytest.mark.parametrize("name", PROFILES)
def test_times_at_the_knots_are_the_files_and_never_fall(name: str) -> None:
    profile = PROFILES[name]
    perf, scale = TableModel(profile), profile.scale
    for tp, table in profile.prefill.items():
        for index, tokens in enumerate(table.tokens):
            most_ms = max(table.raw_ms[: index + 1])  # the upper envelope
            assert perf.prefill_s(tokens, tp) == pytest.approx((scale.prefill * most_ms + scale.step_ms) / 1e3)
    for tp, steps in profile.decode.items():
        last = steps.raw_ms[-1][-1]
        assert perf.decode_step_s(steps.batch[-1], steps.context_tokens[-1], tp) >= scale.decode * last / 1e3 * 0.999999
        for context in steps.context_tokens:
            times = [perf.decode_step_s(batch, context, tp) for batch in steps.batch]
            assert times == sorted(times)


@pytest.mark.parametrize("name", PROFILES)
def test_the_model_fits_somewhere(name: str) -> None:
    perf = TableModel(PROFILES[name])
    assert perf.kv_capacity_tokens(max(perf.tp_sizes(Role.DECODE))) > 10_000


def test_grouped_queries_are_what_saves_kv_cache() -> None:
    kv_bytes = {name: PROFILES[name].memory.kv_bytes_per_token for name in ("h100/opt-30b", "h100/qwen3-32b")}
    assert kv_bytes["h100/opt-30b"] == 48 * 56 * 128 * 2 * 2  # every head has a KV head
    assert kv_bytes["h100/opt-30b"] > 5 * kv_bytes["h100/qwen3-32b"]


def test_the_power_curve_is_what_rapid_says_of_figure_4() -> None:
    power = TableModel(PROFILES["mi300x/llama-3.1-8b"]).power()
    assert power is not None
    assert (power.cap_w[0], power.cap_w[-1]) == (400, 750)
    prefill, decode = (dict(zip(power.cap_w, slow, strict=True)) for slow in (power.prefill_slow, power.decode_slow))
    assert prefill[400] == 1.8
    assert prefill[600] == 1.15
    assert 1.3 <= decode[400] <= 1.5
    assert decode[600] == decode[750] == prefill[750] == 1
    assert all(prefill[cap] >= decode[cap] for cap in power.cap_w)


@pytest.mark.parametrize("name", [name for name, profile in PROFILES.items() if profile.power])
def test_the_power_curve_falls_to_one_and_covers_the_draws(name: str) -> None:
    power = PROFILES[name].power
    assert power is not None
    assert power.prefill_slow[-1] == power.decode_slow[-1] == 1
    assert power.idle_w < power.decode_w <= power.prefill_w <= power.cap_w[-1]
    for cap, slow in zip(power.cap_w, power.decode_slow, strict=True):
        assert cap < power.decode_w or slow == 1, "a cap above the draw does nothing"


def test_every_gpu_of_aiconfigurator_has_a_power_curve() -> None:
    assert {name for name, profile in PROFILES.items() if not profile.power and not profile.layouts} == {
        "h100/llama-70b-fp8-dopd-table-1",
        "h100-measured/llama-3.1-8b",
        "h20/llama-3.1-70b",
        "h20/mixtral-8x7b",
        "h20/qwen3-32b",
    }


def test_the_docs_list_every_profile_with_its_kind() -> None:
    rows = re.findall(r"^\| `([\w-]+/[\w.-]+)` \| (measured|modelled) \| (.+) \|$", readme(), re.MULTILINE)
    assert {name: kind for name, kind, _ in rows} == {name: profile.kind for name, profile in PROFILES.items()}


def test_the_docs_name_the_source_of_every_profile() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+/[\w.-]+)` \| \w+ \| (.+) \|$", readme(), re.MULTILINE))
    for name, profile in PROFILES.items():
        source = profile.provenance.source
        tables = re.search(r"(\w+_sxm|l40s), (\w+) ([\w.]+) kernel", source)
        found = tables or re.match(r"(SGLang [\d.]+) on one", source)
        wanted = found.groups() if found else ("DOPD paper", "Table I", "")
        assert all(word in rows[name] for word in wanted), (name, wanted)


@pytest.mark.parametrize("name", COMPUTED)
def test_a_committed_command_wrote_it(name: str) -> None:
    commands = Path("benchmarks/profiles/generate.sh")
    if not commands.is_file():
        pytest.skip("needs the repository, not an installed package")
    assert f"from_tables {name} " in commands.read_text(encoding="utf-8")
    assert f"--out profiles/{name}.json" in PROFILES[name].provenance.command
    assert "/bin/python" not in PROFILES[name].provenance.command


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")
