"""``pdplugins profile …``: files that can be read again, and errors of one line."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pdplugins.errors import ConfigError
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.profiling import show
from pdplugins.profiling.profiles import profile
from pdplugins.resources import data_dir
from pdplugins.terminal import console

pytestmark = pytest.mark.moderate

H100 = data_dir("profiles") / "h100"
LLAMA = "meta-llama/Llama-3.1-8B"
DECODE = "results/selected_decode_interpolation/raw_data.npz"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(profile, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_help_names_every_way_to_make_a_profile() -> None:
    said = run("--help")
    for command in ("from-endpoint", "from-npz", "from-aiconfigurator", "roofline", "export-npz", "show"):
        assert command in said


def test_a_roofline_is_near_the_profile_from_kernels(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    run("roofline", "--gpu", "h100", "--model", LLAMA, "--tp", "1,2", "--out", out)
    made, kernels = TableModel(read_profile(out)), TableModel(read_profile(H100 / "llama-3.1-8b.json"))
    assert made.profile.kind == "modelled"
    for tp in (1, 2):
        assert made.prefill_s(4096, tp) == pytest.approx(kernels.prefill_s(4096, tp), rel=0.35)
        assert made.decode_step_s(64, 2048, tp) == pytest.approx(kernels.decode_step_s(64, 2048, tp), rel=0.35)
        assert made.kv_capacity_tokens(tp) == kernels.kv_capacity_tokens(tp)


def test_factors_need_a_source(tmp_path: Path) -> None:
    made = ("roofline", "--gpu", "h100", "--model", LLAMA, "--out", tmp_path / "mine.json", "--step-ms", "2")
    assert "--scale-source" in refused(*made)
    run(*made, "--scale-source", "a test")
    assert read_profile(tmp_path / "mine.json").scale.step_ms == 2


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    made = ("roofline", "--gpu", "h20", "--model", LLAMA, "--out", tmp_path / "mine.json")
    run(*made)
    assert "--force" in refused(*made)
    run(*made, "--force")


@pytest.mark.parametrize("out", ["file/mine.json", "folder"])
def test_where_nothing_can_be_written_is_said_before_anything_is_measured(tmp_path: Path, out: str) -> None:
    """Nobody listens at this address, so whoever measured would say so."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    made = ("from-endpoint", "http://127.0.0.1:1", "--model", LLAMA, "--gpu", "h100", "--force")
    assert out.partition("/")[0] in refused(*made, "--out", tmp_path / out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "h9", "--model", LLAMA), "choose from a100"),
        (("--gpu", "h100", "--model", "gpt-9"), "config.json"),
        (("--gpu", "h100", "--model", LLAMA, "--tp", "one"), "--tp one: give 1 or more whole numbers"),
        (("--gpu", "h100", "--model", LLAMA, "--power", "none.json"), "--power none.json: No such file"),
        (("--gpu", "h100", "--model", LLAMA, "--power", "/dev/zero"), "--power /dev/zero: a pipe or a device"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("roofline", *arguments, "--out", tmp_path / "mine.json")


def test_a_profile_whose_name_is_too_long_is_not_there() -> None:
    said = refused("show", "x" * 5000)
    assert "profile: there is no 'xxx" in said
    assert len(said) < 2000


def test_a_model_may_be_a_config_json(tmp_path: Path) -> None:
    config = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = [tmp_path / "named.json", tmp_path / "read.json"]
    for model, out in zip((LLAMA, str(tmp_path)), files, strict=True):
        run("roofline", "--gpu", "mi300x", "--model", model, "--out", out)
    named, read = (read_profile(path) for path in files)
    assert (named.prefill, named.decode, named.memory) == (read.prefill, read.decode, read.memory)


@pytest.mark.parametrize("more", [{"n_routed_experts": 256}, {"kv_lora_rank": 512}, {"num_experts_per_tok": 8}])
def test_a_config_json_that_no_shape_tells_is_refused(tmp_path: Path, more: dict[str, int]) -> None:
    """DeepSeek's own, for example: as a dense decoder it would have a tenth of its weights."""
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "vocab_size": 256, "max_position_embeddings": 4096, **more}))
    made = refused("roofline", "--gpu", "h200", "--model", path, "--out", tmp_path / "out.json")
    assert next(iter(more)) in made


def test_the_mockers_table_comes_back(tmp_path: Path) -> None:
    npz, out = tmp_path / "mine.npz", tmp_path / "mine.json"
    run("export-npz", "h100/llama-3.1-8b", "--out", npz, "--decode-tp", "2")
    assert "--force" in refused("export-npz", "h100/llama-3.1-8b", "--out", npz)
    run("from-npz", npz, "--gpu", "h100", "--model", LLAMA, "--decode-tp", "2", "--modelled", "--out", out)
    back, truth = TableModel(read_profile(out)), TableModel(read_profile(H100 / "llama-3.1-8b.json"))
    for tokens in (300, 3000, 30_000):
        assert back.prefill_s(tokens, 1) == pytest.approx(truth.prefill_s(tokens, 1), rel=0.02)
    for batch, context in ((1, 4000), (16, 2000), (128, 1000)):
        assert back.decode_step_s(batch, context, 2) == pytest.approx(truth.decode_step_s(batch, context, 2), rel=0.05)


def profiler_folder(root: Path) -> Path:
    """Write what Dynamo's profiler leaves, of an engine of 100,000 tokens whose steps take 5 ms + 0.1 ms a request."""
    prefill, decode = (root / f"selected_{phase}_interpolation" for phase in ("prefill", "decode"))
    for folder in (prefill, decode):
        folder.mkdir(parents=True)
    np.savez(prefill / "raw_data.npz", prefill_isl=[100, 1000, 4000], prefill_ttft=[20.0, 40.0, 120.0])
    points = [(batch, context) for context in (500, 2000) for batch in (1, 20, 50)]
    np.savez(
        decode / "raw_data.npz",
        x_kv_usage=[batch * context / 100_000 for batch, context in points],
        y_context_length=[context for _, context in points],
        z_itl=[5 + 0.1 * batch for batch, _ in points],
        max_kv_tokens=[100_000],
    )
    return root


def test_the_folder_of_dynamos_profiler_is_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    run("from-npz", profiler_folder(tmp_path / "results"), "--gpu", "h200", "--model", LLAMA, "--out", out)
    perf = TableModel(read_profile(out))
    assert perf.profile.kind == "measured"
    assert perf.prefill_s(1000, 1) == pytest.approx(0.04)
    for batch in (1, 16, 32, 128):
        assert perf.decode_step_s(batch, 1000, 1) == pytest.approx((5 + 0.1 * batch) / 1e3, rel=1e-3)
    assert perf.kv_capacity_tokens(1) == pytest.approx(100_000, abs=2)


@pytest.mark.parametrize(
    ("words", "out", "said"),
    [
        (["roofline", "--model", LLAMA, "--power", "config.json"], "config.json", "--power"),
        (["roofline", "--model", "config.json"], "config.json", "--model"),
        (["roofline", "--model", "."], "config.json", "--model, its config.json"),
        (["from-aiconfigurator", "--model", LLAMA, "--reference", "config.json"], "config.json", "--reference"),
        (["from-aiconfigurator", "--model", "config.json"], "config.json", "--model"),
        (["from-kernels", "--model", "config.json", "--layout", "tp8"], "config.json", "--model"),
        (
            ["from-kernels", "--model", "m", "--layout", "tp8", "--decode-of", "config.json"],
            "config.json",
            "--decode-of",
        ),
        (["from-endpoint", "http://127.0.0.1:1", "--model", "m", "--shape", "config.json"], "config.json", "--shape"),
        (["from-endpoint", "http://127.0.0.1:1", "--model", "config.json"], "config.json", "--model"),
        (["from-npz", "results", "--model", "config.json"], "config.json", "--model"),
        (["from-npz", "config.json", "--model", LLAMA], "config.json", "PATH"),
        (["from-npz", "results", "--model", LLAMA], DECODE, f"{DECODE}, a file of PATH"),
    ],
)
def test_no_profile_takes_the_place_of_a_file_that_is_read(
    words: list[str], out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profiler_folder(Path("results"))
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
    Path("config.json").write_text(json.dumps({**shape, "vocab_size": 256, "max_position_embeddings": 4096}))
    before = Path(out).read_bytes()
    assert refused(*words, "--gpu", "h100", "--out", out, "--force") == f"--out {out} is also {said}; name another file"
    assert Path(out).read_bytes() == before


def test_what_is_no_table_of_dynamos_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no")
    np.savez(tmp_path / "other.npz", a=[1])
    rest = ("--gpu", "h100", "--model", LLAMA, "--out", tmp_path / "mine.json")
    assert "no .npz file" in refused("from-npz", tmp_path / "text.npz", *rest)
    assert "five arrays" in refused("from-npz", tmp_path / "other.npz", *rest)
    assert "No such file" in refused("from-npz", tmp_path, *rest)


TABLES = {
    "prefill_isl": np.array([1.0, 100.0]),
    "prefill_ttft_ms": np.array([1.0, 2.0]),
    "decode_active_kv_tokens": np.array([0.0, 100.0, 1000.0]),
    "decode_context_length": np.array([10.0, 100.0]),
    "decode_itl": np.ones((3, 2)),
}


@pytest.mark.parametrize(
    "odd", [5.0, [], [1.0], [0.0, 0.0, 0.0], ["x", "y"], [1j, 2j], [[[1.0]]], [True, False]], ids=repr
)
@pytest.mark.parametrize("name", TABLES)
def test_arrays_that_are_no_tables_are_one_line(tmp_path: Path, name: str, odd: object) -> None:
    path = tmp_path / "odd.npz"
    np.savez(path, allow_pickle=False, **{**TABLES, name: np.array(odd)})
    out = tmp_path / "mine.json"
    said = refused("from-npz", path, "--gpu", "h20", "--model", LLAMA, "--out", out)
    assert said.startswith((f"{path}: ", f"profile {out}: "))
    assert "\n" not in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "odd", "why"),
    [
        ("prefill_ttft_ms", [-1.0, 2.0], "has a number below 0"),
        ("decode_itl", -np.ones((3, 2)), "has a number below 0"),
        ("decode_itl", np.full((3, 2), np.nan), "one that is not finite"),
        ("decode_active_kv_tokens", [0.0, 100.0, np.inf], "one that is not finite"),
        ("decode_active_kv_tokens", [-100.0, 0.0, 1000.0], "has a number below 0"),
        ("decode_active_kv_tokens", [1000.0, 100.0, 0.0], "numbers that ascend"),
        ("decode_active_kv_tokens", np.array([5, 7, 6], dtype=np.uint8), "numbers that ascend"),
        ("decode_context_length", [100.0, 10.0], "numbers that ascend"),
        ("prefill_isl", [100.0, 1.0], "numbers that ascend"),
        ("decode_itl", np.ones((4, 2)), "has the shape (4, 2), and its axes have (3, 2)"),
        ("decode_itl", np.ones((2, 3)), "has the shape (2, 3), and its axes have (3, 2)"),
        ("prefill_ttft_ms", [1.0, 2.0, 3.0], "has the shape (3,), and its axes have (2,)"),
    ],
    ids=repr,
)
def test_an_array_of_the_mocker_that_makes_no_table_is_named(tmp_path: Path, name: str, odd: object, why: str) -> None:
    path, out = tmp_path / "odd.npz", tmp_path / "mine.json"
    np.savez(path, **{**TABLES, name: np.array(odd)})
    said = refused("from-npz", path, "--gpu", "h20", "--model", LLAMA, "--out", out)
    assert f"{name} " in said
    assert why in said
    assert not out.exists()


@pytest.mark.parametrize("name", ["x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens"])
def test_an_array_of_dynamos_profiler_that_makes_no_table_is_named(tmp_path: Path, name: str) -> None:
    file = profiler_folder(tmp_path / "results") / "selected_decode_interpolation" / "raw_data.npz"
    with np.load(file) as arrays:
        np.savez(file, **{**arrays, name: -arrays[name]})
    said = refused("from-npz", tmp_path / "results", "--gpu", "h20", "--model", LLAMA, "--out", tmp_path / "mine.json")
    assert f"({name} has a number below 0" in said


def test_a_profile_that_is_too_large_to_be_read_is_not_written(tmp_path: Path) -> None:
    path, out, count = tmp_path / "big.npz", tmp_path / "mine.json", 60_000
    np.savez(path, **TABLES | {"decode_context_length": np.arange(1.0, 1 + count), "decode_itl": np.ones((3, count))})
    said = refused("from-npz", path, "--gpu", "h20", "--model", LLAMA, "--out", out)
    assert "its tables take more than 4096 KiB, which nothing reads" in said
    assert not out.exists()


def test_a_table_that_unpacks_without_end_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, prefill_isl=np.zeros(4_000_000))
    assert path.stat().st_size < 100_000
    said = refused("from-npz", path, "--gpu", "h20", "--model", LLAMA, "--out", tmp_path / "mine.json")
    assert "more than 16384 KiB when unpacked" in said


def test_show_prints_and_draws(tmp_path: Path) -> None:
    said = run("show", "mi300x/llama-3.1-8b", "--plot", tmp_path / "plot.png")
    assert "modelled" in said
    assert "750 W" in said
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert "choose from a100/" in refused("show", "h100/gpt-9")


def test_a_plot_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for plot, why in ((".", "ends in .png, .svg, .pdf"), ("x.csv", "ends in"), ("no/x.png", "no folder")):
        assert why in refused("show", "mi300x/llama-3.1-8b", "--plot", tmp_path / plot)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_aiconfigurator_missing_says_what_to_install(tmp_path: Path) -> None:
    made = ("from-aiconfigurator", "--gpu", "h100", "--model", LLAMA, "--out", tmp_path / "mine.json")
    for python in (sys.executable, tmp_path / "none"):
        assert "pip install aiconfigurator==0.7.0" in refused(*made, "--python", python)
    assert "add --like" in refused(
        "from-aiconfigurator", "--gpu", "h20", "--model", LLAMA, "--out", tmp_path / "m.json"
    )


FAKE = """#!{python}
import json, sys
asked = json.load(sys.stdin)
parts = {{
    "dense": [10 + 0.02 * t for t in asked["tokens"]],
    "attention": [1 + (t / 1000) ** 2 - 0.5 * (t == 1024) for t in asked["tokens"]],
    "decode_dense": [8 + 0.01 * b for b in asked["batches"]],
    "decode_attention": [[b * c / 1e5 for c in asked["contexts"]] for b in asked["batches"]],
}}
every = {{str(tp): parts for tp in asked["tp"]}}
json.dump({{"tool": "aiconfigurator 0.0", "version": "1", "parts": every}}, sys.stdout)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """Return an interpreter that answers like aiconfigurator's."""
    path = tmp_path / "python"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_kernel_times_become_tables(tmp_path: Path, fake: Path) -> None:
    out = tmp_path / "mine.json"
    run("from-aiconfigurator", "--gpu", "h100", "--model", LLAMA, "--out", out, "--python", fake)
    perf = TableModel(read_profile(out))
    assert perf.prefill_s(8, 1) == pytest.approx(0.01116, rel=1e-3)
    assert perf.dense_s(32_768 * 2, 1) == pytest.approx((10 + 0.02 * 65_536) / 1e3)
    assert perf.decode_step_s(64, 65_536, 1) == pytest.approx((8 + 0.64 + 64 * 65_536 / 1e5) / 1e3)
    assert "--python" not in perf.profile.provenance.command


def test_another_gpu_keeps_the_distance_to_the_roofline(tmp_path: Path, fake: Path) -> None:
    files = [tmp_path / "h100.json", tmp_path / "h20.json"]
    run("from-aiconfigurator", "--gpu", "h100", "--model", LLAMA, "--out", files[0], "--python", fake)
    run("from-aiconfigurator", "--gpu", "h20", "--like", "h100", "--model", LLAMA, "--out", files[1], "--python", fake)
    h100, h20 = (TableModel(read_profile(path)) for path in files)
    assert h20.prefill_s(65_536, 1) == pytest.approx(h100.prefill_s(65_536, 1) * 989 / 148, rel=0.01)  # compute
    assert h20.decode_step_s(1, 65_536, 1) == pytest.approx(h100.decode_step_s(1, 65_536, 1) * 3.35 / 4.0, rel=0.01)


def test_a_reference_sets_the_factors(tmp_path: Path, fake: Path) -> None:
    out, reference = tmp_path / "mine.json", H100 / "llama-70b-fp8-dopd-table-1.json"
    model = "nvidia/Llama-3.1-70B-Instruct-FP8"
    run("from-aiconfigurator", "--gpu", "h100", "--model", model, "--tp", "1,2", "--reference", reference,
        "--out", out, "--python", fake)  # fmt: skip
    scale, measured = read_profile(out).scale, read_profile(reference)
    raw = [point["raw_ms"] for point in scale.points["prefill"]]
    assert raw == pytest.approx([10 + 0.02 * t + 1 + (t / 1000) ** 2 for t in (700, 1200, 1700)], abs=1e-3)
    wanted = [ms for t, ms in zip(measured.prefill[1].tokens, measured.prefill[1].raw_ms, strict=True) if t >= 700]
    assert scale.prefill == pytest.approx(np.mean(np.array(wanted) / np.array(raw)))


def test_a_reference_of_short_prompts_sets_no_factor(tmp_path: Path, fake: Path) -> None:
    reference = json.loads((H100 / "llama-70b-fp8-dopd-table-1.json").read_text())
    for table in reference["prefill"].values():
        table["tokens"] = [128 * (1 + n) // len(table["tokens"]) for n in range(len(table["tokens"]))]
    (tmp_path / "short.json").write_text(json.dumps(reference))
    made = ("from-aiconfigurator", "--gpu", "h100", "--model", "nvidia/Llama-3.1-70B-Instruct-FP8", "--tp", "1,2")
    said = refused(*made, "--reference", tmp_path / "short.json", "--out", tmp_path / "out.json", "--python", fake)
    assert "--reference: it needs prompts of 700 tokens" in said


def test_what_a_profile_says_reaches_the_terminal_as_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shipped = read_profile(data_dir("profiles") / "h100/llama-3.1-70b-fp8.json")
    notes = ("[/x] \x1b[31mred", "[bold]")
    odd = shipped.model_copy(update={"provenance": shipped.provenance.model_copy(update={"notes": notes})})
    console().print(show.summary("[/a$\\foo$]", odd))
    printed = capsys.readouterr().out
    assert "[/a$\\foo$]" in printed
    assert "[/x] ?[31mred" in printed
    assert "[bold]" in printed
    show.draw("[/a$\\foo$]", odd, tmp_path / "p.png")
