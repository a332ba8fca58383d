"""pdplugins simulate, compare and bound: what they write, and what they say when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdplugins.contracts.kinds import Kind
from pdplugins.errors import PdpluginsError
from pdplugins.results import Result
from pdplugins.runtime.decision_reader import read
from pdplugins.runtime.replaying import verified
from pdplugins.sim.run.options import Overrides, configured
from tests.command_line import invoke


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two hundred requests in forty seconds, more than one prefill worker can serve in time."""
    path = tmp_path / "trace.jsonl"
    rows = (
        {"timestamp": 200 * i, "input_length": 200 + 1009 * i % 3000, "output_length": 5 + 31 * i % 90}
        for i in range(200)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    """Leave out what depends on the clock of the wall."""
    return {key: value for key, value in result.items() if key not in {"speed", "command"}}


def test_simulate_writes_all_it_is_asked_for(trace: Path, tmp_path: Path) -> None:
    out, page, records = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.jsonl"
    done = invoke("simulate", "dopd", "--trace", trace, "--json", out, "--html", page, "--records", records)
    assert done.exit_code == 0, done.output
    result = Result.model_validate_json(out.read_text())
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(lines) == result.requests.total == 200
    assert set(lines[0]) >= {"id", "arrival_s", "ttft_s", "tpot_s", "prefill_worker", "decode_worker", "error"}
    assert "In hindsight" in page.read_text()
    assert "SLO attainment" in done.output


def test_the_config_in_a_result_runs_again(trace: Path, tmp_path: Path) -> None:
    first, again, file = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "again.yaml"
    options = ("--trace", trace, "--seed", "7")
    invoke("simulate", "stock-round-robin", *options, "--gpus", "6", "--set", "router=power-of-two", "--json", first)
    config = json.loads(first.read_text())["config"]
    assert (config["router"]["name"], config["router"]["seed"]) == ("power-of-two", 7)
    del config["run"]
    file.write_text(json.dumps(config))  # JSON is YAML
    invoke("simulate", file, *options, "--json", again)
    assert untimed(json.loads(again.read_text())) == untimed(json.loads(first.read_text()))


@pytest.mark.moderate
@pytest.mark.parametrize("config", ["dopd", "rapid"])
def test_watching_a_run_changes_nothing(config: str, trace: Path, tmp_path: Path) -> None:
    seen, unseen, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "r.html"
    invoke("simulate", config, "--trace", trace, "--json", seen, "--html", page)
    invoke("simulate", config, "--trace", trace, "--json", unseen)
    draws = json.loads(seen.read_text())["metrics"]["mean_w"] is not None
    assert ("Power of all GPUs" in page.read_text()) == draws
    assert untimed(json.loads(seen.read_text())) == untimed(json.loads(unseen.read_text()))


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ("dopd", {"planner", "router", "batch_scheduler"}),
        ("ampd", {"router", "batch_scheduler"}),
        ("ampd+flow", {"router", "flow", "batch_scheduler"}),
    ],
)
def test_a_decision_log_changes_nothing_and_is_the_same_again(
    config: str, kinds: set[str], trace: Path, tmp_path: Path
) -> None:
    logged, unlogged = tmp_path / "a.json", tmp_path / "b.json"
    name, _, flow = config.partition("+")
    command = ("simulate", name, "--trace", trace, "--set", "decision_log.sample=20")
    command += ("--set", "flow.name=fcfs", "--set", "flow.per_worker=8") if flow else ()
    for log in ("one", "two"):
        done = invoke(*command, "--json", logged, "--decision-log", tmp_path / log)
        assert done.exit_code == 0, done.output
    invoke(*command, "--json", unlogged)
    assert untimed(json.loads(logged.read_text())) == untimed(json.loads(unlogged.read_text()))
    (first,), (second,) = read(tmp_path / "one"), read(tmp_path / "two")
    assert {entry.kind for entry in first.entries} == kinds
    assert [entry.number for entry in first.kind(Kind.ROUTER)] == list(range(20, 201, 20))
    decided = [[(e.kind, e.number, e.seen, e.answer) for e in each.entries] for each in (first, second)]
    assert decided[0] == decided[1]
    if Kind.PLANNER in kinds:
        assert verified(tmp_path / "one")[1][0].endswith("the same again")


@pytest.mark.moderate
def test_compare_is_the_same_in_any_number_of_processes(trace: Path, tmp_path: Path) -> None:
    one, two, page = tmp_path / "1.json", tmp_path / "2.json", tmp_path / "r.html"
    names = ("stock-least-loaded", "dopd", "stock-colocated")
    for jobs, out in ((1, one), (2, two)):
        done = invoke("compare", *names, "--trace", trace, "--jobs", jobs, "--json", out, "--html", page)
        assert done.exit_code == 0, done.output
    first, second = (json.loads(path.read_text()) for path in (one, two))
    assert [row["name"] for row in first["runs"]] == list(names)
    assert list(map(untimed, first["runs"])) == list(map(untimed, second["runs"]))
    assert first["best"] == second["best"]
    most = max(row["metrics"]["slo_attainment"] for row in first["runs"])
    best = [row["name"] for row in first["runs"] if row["metrics"]["slo_attainment"] == most]
    assert first["best"]["slo_attainment"] in ([], best)
    assert "*" in done.output


@pytest.mark.moderate
def test_regret_is_the_distance_from_the_bound(trace: Path, tmp_path: Path) -> None:
    out, best = tmp_path / "r.json", tmp_path / "b.json"
    options = ("--trace", trace, "--rate", "60", "--gpus", "4", "--set", "deployment.max_batch=32")
    invoke("simulate", "stock-least-loaded", *options, "--bound", "--json", out)
    invoke("bound", "stock-least-loaded", *options, "--json", best)
    result, bound = (json.loads(path.read_text()) for path in (out, best))
    assert result["regret"]["best_slo_attainment"] == bound["slo_attainment"] < 1
    assert result["regret"]["slo_attainment"] == bound["slo_attainment"] - result["metrics"]["slo_attainment"] >= 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "nothing"], "nothing.yaml: No such file"),
        (["simulate", "dopd", "--trace", "nowhere.csv"], "nowhere.csv"),
        (["simulate", "dopd", "--json", "no/such/folder.json"], "there is no folder"),
        (["simulate", "dopd", "--records", "r.txt"], ".jsonl or .parquet"),
        (["simulate", "dopd", "--rate", "0"], "rate: must be at least 1e-06"),
        (["simulate", "dopd", "--gpus", "2"], "dopd: deployment"),
        (["simulate", "dopd", "--prefill", "9"], "dopd: deployment"),
        (["simulate", "dopd", "--set", "planner"], "key=value"),
        (["simulate", "dopd", "--set", "planner.nope=3"], "unknown key 'nope'"),
        (["compare", "dopd", "nothing"], "nothing.yaml"),
        (["bound", "--profile", "no/such"], "no/such"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    done = invoke(*arguments)
    assert isinstance(done.exception, PdpluginsError), done.output
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize("command", ["simulate dopd", "compare dopd", "bound dopd", "advise", "backtest"])
def test_more_gpus_than_there_are_anywhere_are_refused_before_anything_is_counted(command: str) -> None:
    done = invoke(*command.split(), "--gpus", "9" * 21)
    assert done.exit_code == 2
    assert "less than or equal to 65536" in done.output


def test_parquet_says_what_the_lines_say(tmp_path: Path) -> None:
    """With the same columns, also where nobody had an answer, or nobody an error."""
    parquet = pytest.importorskip("pyarrow.parquet")
    schemas = []
    for kv_tokens in (10, 3000, 100_000):
        few = "--max-requests", "50", "--set", f"simulation.kv_tokens={kv_tokens}"
        for name in ("r.jsonl", "r.parquet"):
            assert invoke("simulate", "dopd", *few, "--records", str(tmp_path / name)).exit_code == 0
        table = parquet.read_table(tmp_path / "r.parquet")
        lines = (tmp_path / "r.jsonl").read_text().splitlines()
        assert table.to_pylist() == [json.loads(line) for line in lines]
        schemas.append(table.schema)
    assert schemas[0] == schemas[1] == schemas[2]


def test_parquet_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = invoke("simulate", "dopd", "--records", "r.parquet")
    assert "pip install pyarrow" in str(done.exception)


@pytest.mark.moderate
@pytest.mark.parametrize("names", [["simulate", "dopd"], ["compare", "dopd", "stock-round-robin", "--jobs", "1"]])
def test_ctrl_c_keeps_what_was_done(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is of the requests that had ended, and the exit code is 130. A run that had not begun is left out."""

    @contextmanager
    def impatient(names: Sequence[str]) -> Iterator[Callable[[Sequence[float]], None]]:
        def update(shares: Sequence[float]) -> None:
            raise KeyboardInterrupt

        yield update

    monkeypatch.setattr("pdplugins.terminal.progress", impatient)
    trace, out, page = tmp_path / "long.jsonl", tmp_path / "r.json", tmp_path / "r.html"
    row = '{{"timestamp": {}, "input_length": 90, "output_length": 40}}\n'
    trace.write_text("".join(row.format(20 * i) for i in range(3000)))
    done = invoke(*names, "--trace", trace, "--json", out, "--html", page)
    assert done.exit_code == 130
    data = json.loads(out.read_text())
    (result,) = data.get("runs", [data])
    assert result["interrupted"]
    assert 0 < result["requests"]["total"] <= 1000
    assert "Interrupted" in page.read_text()


def test_pools_keep_their_share_of_the_gpus() -> None:
    def pools(name: str, gpus: int) -> tuple[int, int]:
        deployment = configured(name, Overrides(gpus=gpus)).deployment
        assert deployment.gpu_budget == gpus
        return deployment.prefill.replicas, deployment.decode.replicas

    assert pools("stock-round-robin", 8) == (3, 1)
    assert pools("stock-round-robin", 16) == (6, 2)
    assert pools("stock-round-robin", 6) == (2, 1)
    assert pools("stock-colocated-prefill-first", 12) == (3, 3)
    assert pools("dopd", 16) == (2, 2)  # it holds three of eight GPUs at start
    assert pools("dopd", 3) == (1, 1)


def test_numbers_of_workers_come_last() -> None:
    config = configured("stock-round-robin", Overrides(gpus=16, decode=1, settings=("deployment.startup_s=5",)))
    deployment = config.deployment
    assert (deployment.prefill.replicas, deployment.decode.replicas, deployment.startup_s) == (6, 1, 5.0)


def test_the_load_of_a_run_without_a_trace_is_said_on_standard_error(trace: Path) -> None:
    for words in (
        ("simulate", "dopd", "--no-hindsight"),
        ("compare", "dopd"),
        ("bound",),
        ("simulate", "dopd", "--stream"),
    ):
        said = invoke(*words, "--clip-s", "5")
        assert said.stderr.startswith("no --trace: the load is 'synthetic', 300 s of bursty made-up requests")
        assert "no --trace" not in said.stdout
        assert "no --trace" not in invoke(*words, "--clip-s", "5", "--trace", trace).stderr
    assert "no --trace" not in invoke("simulate", "dpod").stderr  # first what is wrong
