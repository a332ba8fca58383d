"""How a command ends without an output, at a signal or for want of memory: a line at most, and no half a file."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from pdplugins import cli
from pdplugins.files import whole
from pdplugins.sim.run import compare
from tests.programs import PDPLUGINS, exit_code, run

pytestmark = pytest.mark.moderate

WORKER = ("gateway", "--worker", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["simulate", "dopd", "--trace", "tr.jsonl", "--no-hindsight", "--json", "-", "--html", "o"], ["o"]),
        (["compare", "dopd", "--trace", "tr.jsonl", "--json", "-", "--html", "o"], ["o"]),
        (["validate", "papers", "--json", "o"], ["o"]),
        (
            ["advise", "--trace", "tr.jsonl", "--gpus", "2", "--save-dir", "o"],
            ["o/config.yaml", "o/sglang.sh", "o/dynamo.sh", "o/kubernetes.yaml"],
        ),
    ],
)
def test_files_are_written_where_nobody_reads_what_is_printed(
    arguments: list[str], files: list[str], tmp_path: Path
) -> None:
    lines = [f'{{"timestamp": {1000 * second}, "input_length": 100, "output_length": 10}}\n' for second in range(5)]
    (tmp_path / "tr.jsonl").write_text("".join(lines))
    with Path("/dev/full").open("w") as full:
        subprocess.run([*PDPLUGINS, *arguments], stdout=full, cwd=tmp_path, check=False)
    assert all((tmp_path / file).stat().st_size for file in files)


@pytest.mark.parametrize("arguments", [["trace", "info", "demo"], ["profile", "show", "h100/llama-3.1-70b-fp8"]])
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_output_of_few_characters_shows_what_it_can(arguments: list[str], encoding: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*PDPLUGINS, *arguments], capture_output=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u258" not in done.stdout


@pytest.mark.parametrize("arguments", [["trace", "info", "demo"], ["plugins"]])
def test_a_standard_output_that_is_closed_is_no_traceback(arguments: list[str]) -> None:
    command = shlex.join([*PDPLUGINS, *arguments])
    done = subprocess.run(["sh", "-c", f"exec {command} >&-"], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["plugins"], ["config", "--schema"], ["config", "dopd"]])
def test_a_full_disk_behind_standard_output_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PDPLUGINS, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "pdplugins: standard output: No space left on device; send it to where there is room\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("where", "said"),
    [("> /dev/full", "No space left on device; nobody saw the key"), (">&-", "closed, so nobody would see the key")],
)
@pytest.mark.parametrize("before", [None, b"# mine\n"])
def test_no_key_is_kept_that_nobody_saw(where: str, said: str, before: bytes | None, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    if before is not None:
        keys.write_bytes(before)
    command = shlex.join([*PDPLUGINS, "gateway-key", "keys", "alice"])
    done = subprocess.run(
        ["sh", "-c", f"exec {command} {where}"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == ({"keys": before} if before else {})


def test_a_pipe_keeps_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert exit_code(["gateway-key", "pipe", "alice"], monkeypatch) == 2


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(cli, "default_registry", fails)
    monkeypatch.setattr(sys, "argv", ["pdplugins", "plugins"])
    with pytest.raises(SystemExit) as ended:
        cli._run(cli.app, "pdplugins")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("pdplugins: not enough memory for this; a shorter trace")


def test_a_run_whose_process_is_killed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(compare, "run_one", killed)
    words = ["compare", "dopd", "arrow", "--trace", "demo", "--clip-s", "2", "--jobs", "2"]
    assert exit_code(words, monkeypatch) == 2
    assert capsys.readouterr().err.endswith(
        "pdplugins: a process of it was killed, perhaps for want of memory; fewer --jobs or a shorter trace "
        "(--clip-s, --max-requests) needs less\n"
    )


@pytest.mark.parametrize("program", ["main", "dynamo_main"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_the_command_line_loads_is_no_traceback(program: str, when: str, tmp_path: Path) -> None:
    """`typer` is one of the first modules to load. Where tests run in the background, Ctrl-C is ignored at first."""
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    press = f"import os, signal; {heard}; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "typer.py").write_text(press if when == "before" else f"def __getattr__(name): {press}")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pdplugins.entry import {program}; {program}()"
    done = subprocess.run([sys.executable, "-c", code, "plugins"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_programs_load_within_reach_of_ctrl_c() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    scripts = tomllib.loads(text)["project"]["scripts"]
    assert scripts == {"pdplugins": "pdplugins.entry:main", "dynamo": "pdplugins.entry:dynamo_main"}


@pytest.mark.parametrize("where", ["default_registry", "prepare"])
def test_ctrl_c_before_a_command_begins_is_no_traceback(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, where, interrupted)
    monkeypatch.setattr(sys, "argv", ["pdplugins", "plugins"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_sigterm_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = typer.Typer()
    application.callback()(lambda: None)

    @application.command("make")
    def make() -> None:
        with whole(tmp_path / "out") as scratch:
            scratch.write_text("half")
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(sys, "argv", ["pdplugins", "make"])
    with pytest.raises(SystemExit) as ended:
        cli._run(application, "pdplugins")
    assert ended.value.code == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "arguments", "why"),
    [
        ("pdplugins", ["simulate", "my.yaml", "--trace", "demo"], "there is no worker 'p9'"),
        ("pdplugins", ["replay", "--trace", "sessions"], "the trace has sessions"),
        ("pdplugins", [*WORKER, "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8000"),
        ("pdplugins", ["planner", "--listen", "192.0.2.1:1", "--allow-from", "::1"], "cannot listen on 192.0.2.1:1"),
        ("dynamo", ["serve", "--port", "0", "--log-dir", "/dev/null"], "--log-dir /dev/null: File exists"),
    ],
)
def test_a_run_that_is_refused_leaves_no_decision_log(
    program: str, arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    config = Path("my.yaml")
    config.write_text("simulation: {deaths: [{at_s: 1, worker: p9}]}\n")
    done = run(program, *arguments, "--decision-log", "log")
    assert done.returncode == 2, done
    assert why in done.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / config]
