"""Simulated rows: what a layout, two pools and guesses do to latencies, and the fit of the coefficients."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdplugins.perf.profile import read_profile
from pdplugins.studies.measured import report
from pdplugins.studies.measured.engines import group_tokens
from pdplugins.studies.measured.published import Pools
from pdplugins.studies.measured.rows import LAYERS
from pdplugins.studies.measured.simulate import EFFECTS, Coefficients, profile_path, refusal, simulate
from pdplugins.studies.measured.steps import PromptSteps
from pdplugins.studies.validate.commands import validate
from tests.studies.measured.two_rows import ONE, TWO

pytestmark = pytest.mark.moderate


def test_two_pools_spare_decodes_the_prompts_and_cost_a_handoff() -> None:
    apart = replace(TWO, pools=Pools((1, "tp8+ep8"), (1, "tp8+ep8"), 0))
    near, far = (simulate(apart, Coefficients(handoff_ms=ms)) for ms in (0.0, 200.0))
    assert near.tpot_s < simulate(ONE, Coefficients()).tpot_s
    assert far.ttft_s == pytest.approx(near.ttft_s + 0.2, rel=0.05)


def test_guesses_shorten_an_answer_by_as_much_as_is_accepted() -> None:
    guessing = replace(TWO, pools=replace(TWO.pools, draft_tokens=3))
    none, some, all_right = (simulate(guessing, Coefficients(acceptance=share)).tpot_s for share in (0.3, 0.6, 0.95))
    assert all_right < some < none
    assert simulate(TWO, Coefficients(acceptance=0.3)) == simulate(TWO, Coefficients(acceptance=0.9))


def test_a_prompt_alone_takes_as_long_as_one_in_every_group() -> None:
    groups = replace(ONE, pools=Pools(None, (1, "dp8+ep8"), 0), inference_max=False, clients=1)
    quick = Coefficients(launch_ms=0.0)
    alone, together = (simulate(replace(groups, clients=clients), quick) for clients in (1, 8))
    assert together.ttft_s < 2 * alone.ttft_s  # the first starts alone, and the other seven together
    assert simulate(groups, quick, without="groups").ttft_s < alone.ttft_s - 0.1


def test_experts_of_a_prefill_worker_count_only_the_tokens_that_there_are() -> None:
    alone = replace(TWO, pools=Pools((1, "dp8+ep8"), (1, "tp8+ep8"), 0), clients=1)
    profile = read_profile(profile_path(alone, "dp8+ep8"))
    whole, own = (PromptSteps(profile, 0.0, 8192.0, own_experts=own) for own in (False, True))
    assert own.dense_s(1024, 8) < whole.dense_s(1024, 8) - 0.05
    assert own.dense_s(8192, 8) == whole.dense_s(8192, 8)
    padded = replace(alone, pools=Pools(None, (1, "dp8+ep8"), 0))
    quick = Coefficients(launch_ms=0.0, handoff_ms=0.0)
    assert simulate(alone, quick).ttft_s < simulate(padded, quick).ttft_s


def test_a_layer_of_deepseek_takes_three_times_the_launches_of_the_others() -> None:
    times = {
        model: simulate(
            replace(ONE, model=model, system=system, pools=Pools(None, (1, "tp8+ep8"), 0), isl_tokens=64, clients=1),
            Coefficients(launch_ms=9.0),
        ).ttft_s
        - Coefficients().request_ms / 1e3
        for model, system in (("deepseek-r1", "h200"), ("qwen3-235b-a22b-fp8", "h100"), ("gpt-oss-120b", "h200"))
    }
    layers = {model: seconds / LAYERS[model] for model, seconds in times.items()}
    assert layers["deepseek-r1"] == pytest.approx(3 * layers["qwen3-235b-a22b-fp8"], rel=0.01)
    assert layers["gpt-oss-120b"] == pytest.approx(layers["qwen3-235b-a22b-fp8"], rel=0.01)


def test_prompts_wait_until_every_group_has_one() -> None:
    apart = replace(ONE, pools=Pools(None, (1, "dp8+ep8"), 0), clients=16, osl_tokens=256)
    waits, starts = (simulate(apart, Coefficients(), without=effect) for effect in ("", "balance"))
    assert waits.ttft_s > 1.2 * starts.ttft_s
    assert waits.tpot_s < starts.tpot_s  # one long step for all groups, instead of one for each
    assert simulate(ONE, Coefficients()) == simulate(ONE, Coefficients(), without="balance")


def test_a_short_prompt_waits_for_its_launches_but_not_in_vllm() -> None:
    short = replace(ONE, isl_tokens=64, clients=1, inference_max=False)
    quick, slow = (simulate(short, Coefficients(launch_ms=ms)).ttft_s for ms in (1.0, 2.0))
    assert slow == pytest.approx(quick + 0.366)  # 61 layers of six matrices
    graphs = replace(short, model="gpt-oss-120b", engine="vllm", pools=Pools(None, (1, "tp8"), 0))
    assert simulate(graphs, Coefficients(launch_ms=9.0)) == simulate(graphs, Coefficients())


def test_the_tokens_of_a_step_are_those_of_the_day() -> None:
    early, late = (replace(ONE, day=day) for day in (date(2025, 12, 15), date(2026, 1, 28)))
    guessing = replace(late, pools=replace(ONE.pools, draft_tokens=3), clients=32)
    assert [group_tokens(row) for row in (early, late, guessing)] == [1152, 8192, 1216]


def test_the_tokens_of_a_prefill_worker_are_those_of_its_recipe() -> None:
    recipes = [(system, isl) for system in ("h100", "h200") for isl in (1024, 8192)]
    found = [group_tokens(replace(TWO, system=system, isl_tokens=isl)) for system, isl in recipes]
    assert found == [2048, 8224, 8192, 16_640]


def test_a_report_says_what_each_effect_mends() -> None:
    apart = replace(ONE, id="apart", pools=Pools(None, (1, "dp8+ep8"), 0), clients=8)
    felt = report.predict([ONE, apart], Coefficients(), 0)
    true = [replace(row, ttft_s=one.ttft_s, tpot_s=one.tpot_s) for row, one in zip((ONE, apart), felt, strict=True)]
    rows = [true[0], replace(true[1], fitted=False)]
    effects = {one["effect"]: one for one in report.report(rows, 0)["effects"]}
    assert effects.keys() == set(EFFECTS.values())
    assert effects[EFFECTS["groups"]]["rows"] == 1
    assert effects[EFFECTS["groups"]]["ttft_without"] > effects[EFFECTS["groups"]]["ttft_with"]


def test_every_coefficient_matters_to_the_rows_that_it_is_for() -> None:
    assert Coefficients(acceptance=0.4, request_ms=7, handoff_ms=9).inside(ONE) == Coefficients()
    assert Coefficients(handoff_ms=9).inside(TWO) == Coefficients(handoff_ms=9)
    later = simulate(ONE, Coefficients(request_ms=150.0))
    assert later.ttft_s == pytest.approx(simulate(ONE, Coefficients()).ttft_s + 0.1)


def test_a_layout_without_tables_is_refused() -> None:
    assert refusal(ONE) is None
    assert "no kernel tables for tp2" in str(refusal(replace(ONE, pools=Pools(None, (1, "tp2"), 0))))
    assert "more KV cache" in str(refusal(replace(ONE, isl_tokens=1 << 22)))


def test_times_of_requests_and_of_hand_overs_can_be_left_out() -> None:
    times = Coefficients(request_ms=30.0, handoff_ms=80.0)
    one, two = (simulate(row, times).ttft_s for row in (ONE, TWO))
    assert simulate(ONE, times, without="requests").ttft_s == pytest.approx(one - 0.03)
    assert simulate(TWO, times, without="handoffs").ttft_s == pytest.approx(two - 0.08, rel=0.02)
    assert simulate(ONE, times, without="handoffs").ttft_s == one


def test_the_fit_finds_the_coefficients_that_made_the_rows() -> None:
    true = Coefficients(kernels=1.2, launch_ms=0.4, request_ms=30.0, handoff_ms=80.0)
    rows = [replace(row, clients=clients) for row in (ONE, TWO) for clients in (1, 4, 16)]
    felt = report.predict(rows, true, 0)
    rows = [replace(row, ttft_s=one.ttft_s, tpot_s=one.tpot_s) for row, one in zip(rows, felt, strict=True)]
    found = report.fit(rows, 0)
    again = report.predict(rows, found, 0)
    assert [one.tpot_s for one in again] == pytest.approx([one.tpot_s for one in felt], rel=0.02)
    assert [one.ttft_s for one in again] == pytest.approx([one.ttft_s for one in felt], rel=0.05)
    assert found.acceptance == Coefficients().acceptance


def test_a_ttft_without_a_warm_up_does_not_count() -> None:
    cold = [
        replace(ONE, model="gpt-oss-120b", pools=Pools(None, (1, "tp8"), 0), day=date(2025, 12, 15), clients=clients)
        for clients in (1, 4)
    ]
    felt = [simulate(row, Coefficients(), 0) for row in cold]
    slow = [replace(row, ttft_s=9.0, tpot_s=one.tpot_s) for row, one in zip(cold, felt, strict=True)]
    assert [row.warm for row in (*slow, ONE, replace(slow[0], inference_max=False))] == [False, False, True, True]
    found = report.fit(slow, 0)
    assert (found.request_ms, found.kernels) == (Coefficients().request_ms, pytest.approx(1.0, abs=0.01))


def test_the_command_reports_on_the_half_that_was_not_fitted(tmp_path: Path) -> None:
    names = "id,silicon_data_source,backend,backend_version,model_path,system,mode,isl,osl,tp_size,attention_dp_size,"
    names += "moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
    source = "silicon_concurrency={}; measured=2025-12-15"
    lines = [
        f"r{clients},{source.format(clients)},trtllm,1,deepseek-ai/DeepSeek-R1,h200_sxm,agg,1024,16,8,1,1,8,{ttft},9.5"
        for clients, ttft in zip(range(1, 7), (205, 215, 222, 231, 247, 263), strict=True)
    ]
    rows, out, plot = tmp_path / "rows.csv", tmp_path / "out.json", tmp_path / "out.svg"
    rows.write_text("\n".join([names, *lines, lines[0].replace("DeepSeek-R1", "GPT-9")]))
    done = CliRunner().invoke(validate, ["measured", str(rows), "--json", str(out), "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["rows"] + found["fitted_rows"] == 6
    assert 0 < found["rows"] == len(found["points"]) < 6
    assert list(found["skipped"]) == ["deepseek-ai/GPT-9: no profile covers this model"]
    assert found["lacking"] == [{"why": "deepseek-ai/GPT-9: no profile covers this model", "rows": 1}]
    assert found["coefficients"].keys() == set(Coefficients.__dataclass_fields__)
    assert plot.read_text().startswith("<?xml")


def test_a_plot_that_nobody_can_draw_is_refused_before_the_fit(tmp_path: Path) -> None:
    rows = tmp_path / "none.csv"
    done = CliRunner().invoke(validate, ["measured", str(rows), "--plot", str(tmp_path / "out.xyz")])
    assert "out.xyz: name a file that ends in .png, .svg, .pdf" in str(done.exception)
