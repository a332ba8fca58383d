"""The command line: help that teaches, JSON for machines, one-line errors with exit code 2."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from pdplugins import __version__, cli
from pdplugins.files import whole
from pdplugins.sim.run import compare

pytestmark = pytest.mark.moderate
PROFILES = Path(__file__).parents[1] / "profiles"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    entry = {"pdplugins": "main", "dynamo": "dynamo_main"}[program]
    code = f"import sys; from pdplugins.cli import {entry}; {entry}()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["pdplugins", *arguments])
    monkeypatch.setattr(cli, "app", typer.Typer(**cli._SETTINGS))
    cli.app.command()(cli.config)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_plugins_lists_every_fact_as_json() -> None:
    rows = json.loads(run("pdplugins", "plugins", "--json").stdout)
    assert {"kind", "name", "plugin", "hooks", "distribution", "version"} == set(rows[0])
    (dopd,) = (row for row in rows if (row["kind"], row["name"]) == ("planner", "dopd"))
    assert (dopd["distribution"], dopd["version"]) == ("pdplugins", __version__)


def test_config_prints_every_default() -> None:
    whole = yaml.safe_load(run("pdplugins", "config", "dopd").stdout)
    assert whole["planner"]["name"] == "dopd"
    assert "interval_s" in whole["planner"]
    assert whole["slo"] == {"ttft_s": 2.0, "tpot_s": 0.08}


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("pdplugins", ["config", "nothing"], "nothing.yaml: No such file"),
        ("pdplugins", ["replay", "--planner", "nobody", "--trace", "synthetic"], "planner"),
        ("pdplugins", ["replay", "--planner", "dopd", "--trace", "nowhere.csv"], "nowhere.csv"),
        ("dynamo", ["serve", "--planner", "nobody"], "planner: there is no 'nobody'; choose from"),
        ("dynamo", ["serve", "--planner", "dopd", "--engine", "abacus"], "mocker"),
        ("dynamo", ["serve", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        ("dynamo", ["serve", "--log-dir", "/dev/null"], "--log-dir /dev/null: File exists; give a folder"),
        (
            "pdplugins",
            ["planner", "--metrics-host", "no.such", "--metrics-port", "9191"],
            "cannot listen on no.such:9191",
        ),
        ("dynamo", ["serve", "--planner", "dopd", "--trace", "nowhere.csv"], "nowhere.csv"),
        ("pdplugins", ["gateway", "--worker", "http://[::1"], "--worker: 'http://[::1' is no URL"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(program: str, arguments: list[str], message: str) -> None:
    done = run(program, *arguments)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "dopd", "--trace", "dmeo"], "dmeo: no such trace; did you mean demo? Else: published traces"),
        (["simulate", "dpod"], "dpod.yaml: No such file or directory; did you mean dopd? Else: shipped configs are"),
        (
            ["simulate", "dopd", "--set", "router=randm"],
            "dopd: router: there is no 'randm'; did you mean random? Else:",
        ),
        (["replay", "--planner", "dpod", "--trace", "demo"], "planner: there is no 'dpod'; did you mean dopd? Else:"),
        (
            ["replay", "--planner", "dyn-sla:kalmn", "--trace", "demo"],
            "planner dyn-sla: there is no 'kalmn'; did you mean kalman? Else:",
        ),
        (["gateway", "--config", "fusoin"], "fusoin.yaml: No such file or directory; did you mean fusion? Else:"),
        (
            ["advise", "--trace", "demo", "--gpu", "H1000"],
            "profile: there is no 'H1000/llama-3.1-70b-fp8'; did you mean",
        ),
    ],
)
def test_what_was_probably_meant_comes_before_what_else_there_is(arguments: list[str], said: str) -> None:
    done = run("pdplugins", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"pdplugins: {said}")
    assert done.stderr.count("\n") == 1


WORKER = ("gateway", "--worker", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*WORKER, "--admin-host", ""], "--admin-host: say which address"),
        ([*WORKER, "--port", "99999"], "pdplugins gateway: Invalid value for '--port'"),
        ([*WORKER, "--host", ""], "--host: say which address"),
        ([*WORKER, "--decision-log", ".", "--processes", "2"], "--decision-log .: is a folder"),
        ([*WORKER, "--api-keys", "none"], "--api-keys none: No such file"),
        ([*WORKER, "--admin-host", "10.0.0.1"], "--admin-host 10.0.0.1: others can reach it"),
        (["gateway", "--worker", "http://127.0.0.1:99999"], "--worker: 'http://127.0.0.1:99999' is no URL"),
        (["gateway", "--worker", "http://u:hunter2@127.0.0.1"], "--worker: leave user and password out"),
        (["planner", "--listen", ":99999"], "--listen: ':99999' is no HOST:PORT"),
        (["planner", "--metrics-port", "99999"], "Invalid value for '--metrics-port'"),
        (["planner", "--frontend-url", "http://[::1"], "frontend_url: 'http://[::1' is no URL"),
        (["planner", "--allow-from", "everyone"], "--allow-from: 'everyone' is no address"),
        (["doctor", "--port", "99999"], "Invalid value for '--port'"),
        (["explain"], "Missing argument 'LOG'; see pdplugins explain --help"),
        (["explain", "/dev/null"], "/dev/null: no run in it"),
        (["explain", "LOG", "--shadow", "--verify"], "explain: --shadow tells of whole runs; leave out --verify"),
        (["explain", "LOG", "--shadow", "--request", "a"], "explain: --shadow tells of whole runs; leave out"),
        (["explain", "LOG", "--shadow", "--kind", "router"], "explain: --shadow tells of whole runs; leave out"),
        (["explain", "/dev/urandom"], "/dev/urandom:1: not a line of a decision log"),
        (["bench", "decisions", "--workers", "1000000000"], "Invalid value for '--workers'"),
        (
            ["gateway-key", "/dev/null", "alice"],
            "gateway-key: /dev/null: no file, so it would keep no key; name a file",
        ),
        (["gateway-key", "-", "alice"], "gateway-key: -: no file, so it would keep no key; name a file"),
        (["config", "/dev/zero"], "/dev/zero: larger than 128 KiB"),
        (
            ["gateway-key", "/no/such/folder/keys", "alice"],
            "/no/such/folder/keys: No such file or directory; give a path",
        ),
        (["serve"], "No such command 'serve'"),
        (
            ["simulate", "dopd", "--trace"],
            "pdplugins simulate: Option '--trace' requires an argument; see pdplugins simulate",
        ),
        (["trace", "info", "demo", "--json"], "pdplugins trace info: Option '--json' requires an argument"),
        (["explain", "LOG", "--kind", "planer"], "Invalid value for '--kind': 'planer' is not one of"),
        ([*WORKER, "--decision-log", "no/such/log"], "log no/such/log: there is no folder no/such; choose a file"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pdplugins", *arguments])
    monkeypatch.setattr(cli, "app", typer.Typer(**cli._SETTINGS))
    monkeypatch.delenv("PDPLUGINS_WORKER_KEY", raising=False)
    cli.app.command()(cli.config)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.err


REPLAY = ("replay", "--trace", "tr.jsonl")
SIMULATE = ("simulate", "dopd", "--trace", "tr.jsonl")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*SIMULATE, "--json", "tr.jsonl"], "--json tr.jsonl is also --trace"),
        ([*SIMULATE, "--html", "tr.jsonl"], "--html tr.jsonl is also --trace"),
        ([*SIMULATE, "--records", "./tr.jsonl"], "--records tr.jsonl is also --trace"),
        ([*SIMULATE, "--decision-log", "tr.jsonl"], "--decision-log tr.jsonl is also --trace"),
        ([*SIMULATE, "--json", "x", "--html", "x"], "--html x is also --json"),
        (["simulate", "dopd", "--trace", "log.1", "--decision-log", "log"], "its old part log.1 is also --trace"),
        (["simulate", "dopd", "--trace", "log.1", "--decision-log", "link"], "log.1 is also --trace"),
        ([*SIMULATE, "--json", "x.1", "--decision-log", "x"], "--decision-log, its old part x.1 is also --json"),
        ([*SIMULATE, "--json", "-", "--html", "-"], "--html - is also --json"),
        (["simulate", "my.yaml", "--json", "my.yaml"], "--json my.yaml is also CONFIG"),
        (["compare", "dopd", "my.yaml", "--html", "my.yaml"], "--html my.yaml is also CONFIG my.yaml"),
        (["bound", "my.yaml", "--json", "my.yaml"], "--json my.yaml is also CONFIG"),
        (["plan", "my.yaml", "--trace", "demo", "--gpus", "4", "--write-config", "my.yaml"], "is also CONFIG"),
        (["trace", "info", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also TRACE"),
        (["trace", "make", "tr.jsonl", "--out", "tr.jsonl"], "--out tr.jsonl is also TRACE"),
        ([*REPLAY, "--json", "tr.jsonl"], "--json tr.jsonl is also --trace"),
        ([*REPLAY, "--decision-log", "tr.jsonl"], "--decision-log tr.jsonl is also --trace"),
        (["replay", "--trace", "log.1", "--decision-log", "log"], "--decision-log, its old part log.1 is also --trace"),
        (["backtest", "--access-log", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also --access-log"),
        (["advise", "--trace", "tr.jsonl", "--html", "tr.jsonl"], "--html tr.jsonl is also --trace"),
        (["validate", "silicon", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also FILE"),
        (["validate", "dynamo", "--trace", "tr.jsonl", "--json", "tr.jsonl"], "--json tr.jsonl is also --trace"),
        (["planner", "--config", "my.yaml", "--state", "my.yaml"], "--state my.yaml is also --config"),
        (["planner", "--state", "x.1", "--decision-log", "x"], "--state x.1 is also --decision-log, its old part"),
        (["power", "run", "--config", "my.yaml", "--decision-log", "my.yaml"], "my.yaml is also --config"),
        (["power", "run", "--config", "log.1", "--decision-log", "log"], "its old part log.1 is also --config"),
        ([*WORKER, "--config", "my.yaml", "--decision-log", "my.yaml"], "--decision-log my.yaml is also --config"),
        ([*WORKER, "--api-keys", "log", "--decision-log", "log"], "--decision-log log is also --api-keys"),
        ([*WORKER, "--tls-cert", "log.1", "--decision-log", "log"], "its old part log.1 is also --tls-cert"),
        ([*WORKER, "--tls-key", "log", "--decision-log", "link"], "--decision-log link is also --tls-key"),
        ([*WORKER, "--worker-key-file", "log", "--decision-log", "log"], "log is also --worker-key-file"),
        ([*WORKER, "--worker-ca", "log", "--decision-log", "log"], "log is also --worker-ca"),
        ([*WORKER, "--discover", "file:log", "--decision-log", "log"], "log is also --discover file:log"),
        ([*WORKER, "--processes", "2", "--worker-ca", "log-2", "--decision-log", "log"], "log-2 is also --worker-ca"),
    ],
)
def test_an_output_that_is_an_input_or_another_output_is_refused_and_nothing_is_lost(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {"tr.jsonl": "{}\n", "tr.json": "{}\n", "my.yaml": "planner: dopd\n"}
    before |= {"log": "", "log.1": "{}\n", "log-2": ""}
    for name, text in before.items():
        Path(name).write_text(text)
    Path("link").symlink_to("log")
    before["link"] = ""
    assert refused(arguments, monkeypatch) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert f"{said}; name another file" in told.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "my.yaml", "--trace", "tr.jsonl", "--json", "p.json"],
        ["simulate", "my.yaml", "--trace", "tr.jsonl", "--decision-log", "p.json"],
        ["simulate", "my.yaml", "--trace", "tr.jsonl", "--stream", "--json", "p.json"],
        ["compare", "my.yaml", "--trace", "tr.jsonl", "--html", "p.json"],
        ["bound", "my.yaml", "--trace", "tr.jsonl", "--json", "p.json"],
        ["plan", "my.yaml", "--trace", "tr.jsonl", "--gpus", "4", "--json", "p.json"],
        ["backtest", "my.yaml", "--access-log", "tr.jsonl", "--json", "p.json"],
        ["replay", "--config", "my.yaml", "--trace", "tr.jsonl", "--json", "p.json"],
        ["replay", "--config", "my.yaml", "--trace", "tr.jsonl", "--decision-log", "p.json"],
    ],
)
def test_an_output_that_is_a_profile_of_the_config_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = (PROFILES / "a100" / "llama-3.1-8b.json").read_text()
    Path("p.json").write_text(profile)
    Path("tr.jsonl").write_text('{"timestamp": 0, "input_length": 100, "output_length": 10}\n')
    Path("my.yaml").write_text("planner: dopd\ndeployment: {profile: p.json}\n")
    assert refused(arguments, monkeypatch) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "p.json is also p.json, a profile of my.yaml; name another file" in told.err
    assert Path("p.json").read_text() == profile


def test_a_live_stack_does_not_write_into_a_profile_of_its_config(tmp_path: Path) -> None:
    profile = (PROFILES / "a100" / "llama-3.1-8b.json").read_text()
    (tmp_path / "p.json").write_text(profile)
    (tmp_path / "my.yaml").write_text(f"planner: dopd\ndeployment: {{profile: {tmp_path}/p.json}}\n")
    done = run("dynamo", "serve", "--config", f"{tmp_path}/my.yaml", "--decision-log", f"{tmp_path}/p.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "a profile of" in done.stderr
    assert (tmp_path / "p.json").read_text() == profile


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
        code = "from pdplugins.cli import main; main()"
        subprocess.run([sys.executable, "-c", code, *arguments], stdout=full, cwd=tmp_path, check=False)
    assert all((tmp_path / file).stat().st_size for file in files)


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "dopd", "--trace", "tr\udcff.jsonl", "--json", "o.json"],
        ["advise", "--trace", "demo", "--model-path", "x\udcff", "--save-dir", "D"],
        ["trace", "info", "demo", "--plot=\udcff.svg"],
    ],
)
def test_an_argument_that_is_no_text_is_refused_before_the_work(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(arguments, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "?" in said
    assert said.endswith("is no UTF-8 text, as results are; rename the file or mend it\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["trace", "info", "demo"], ["profile", "show", "h100/llama-3.1-70b-fp8"]])
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_output_of_few_characters_shows_what_it_can(arguments: list[str], encoding: str) -> None:
    code = "from pdplugins.cli import main; main()"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u258" not in done.stdout


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


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", LONG],
        ["config", f"{LONG}/my.yaml"],
        ["simulate", LONG],
        ["simulate", "dopd", "--trace", LONG],
        ["simulate", "dopd", "--trace", f"{LONG}.csv"],
        ["simulate", "dopd", "--trace", "demo", "--json", LONG],
        ["simulate", "dopd", "--trace", "demo", "--json", f"{LONG}/a.json"],
        ["simulate", "dopd", "--trace", "demo", "--records", f"{LONG}.jsonl"],
        ["simulate", "dopd", "--trace", "demo", "--decision-log", LONG],
        ["simulate", "dopd", "--trace", "demo", "--profile", f"{LONG}.json"],
        ["compare", LONG, "dopd"],
        ["bound", "dopd", "--trace", "demo", "--json", LONG],
        ["bound", LONG, "--trace", "demo"],
        ["plan", "ampd", "--trace", "sessions", "--gpus", "4", "--write-config", LONG],
        ["advise", "--trace", "demo", "--save-dir", LONG],
        ["advise", "--trace", "demo", "--html", LONG],
        ["advise", "--trace", LONG],
        ["backtest", "--access-log", LONG],
        ["backtest", "--prometheus", "http://127.0.0.1:1", "--token-file", LONG],
        ["explain", LONG],
        ["explain", LONG, "--verify"],
        ["explain", LONG, "--shadow"],
        ["gateway-key", LONG, "alice"],
        ["gateway-key", f"{LONG}/keys", "alice"],
        ["replay", "--trace", LONG],
        ["replay", "--trace", "demo", "--html", LONG],
        ["replay", "--trace", "demo", "--config", LONG],
        ["trace", "info", LONG],
        ["trace", "info", "demo", "--json", LONG],
        ["trace", "info", "demo", "--plot", f"{LONG}.svg"],
        ["trace", "make", "demo", "--out", LONG],
        ["profile", "show", LONG],
        ["profile", "show", "h100/llama-3.1-70b-fp8", "--plot", f"{LONG}.svg"],
        ["profile", "export-npz", "h100/llama-3.1-70b-fp8", "--out", LONG],
        ["profile", "from-npz", LONG, "--gpu", "h100", "--model", "Qwen/Qwen3-32B", "--out", "a.json"],
        ["profile", "roofline", "--gpu", "h100", "--model", LONG, "--out", "a.json"],
        ["profile", "roofline", "--gpu", "h100", "--model", "Qwen/Qwen3-32B", "--out", LONG],
        ["validate", "silicon", LONG],
        ["validate", "papers", "--json", LONG],
        ["planner", "--state", LONG],
        ["planner", "--config", LONG],
        ["power", "run", "--config", LONG],
        ["bench", "decisions", "--json", LONG],
    ],
)
def test_a_name_that_the_file_system_refuses_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(arguments, monkeypatch) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["pdplugins", "dynamo"])
def test_help_shows_the_commands(program: str) -> None:
    done = run(program, "--help")
    assert done.returncode == 0
    commands = {"pdplugins": ("plugins", "config", "replay", "explain", "doctor"), "dynamo": ("serve",)}
    assert all(command in done.stdout for command in commands[program])


def test_version_is_told() -> None:
    assert run("pdplugins", "--version").stdout == f"pdplugins {__version__}\n"


@pytest.mark.parametrize("arguments", [["plugins"], ["config", "--schema"], ["config", "dopd"]])
def test_a_full_disk_behind_standard_output_is_one_line(arguments: list[str]) -> None:
    code = "from pdplugins.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
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
    program = f"exec {shlex.quote(sys.executable)} -c 'from pdplugins.cli import main; main()' gateway-key keys alice"
    done = subprocess.run(
        ["sh", "-c", f"{program} {where}"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == ({"keys": before} if before else {})


def test_a_pipe_keeps_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert refused(["gateway-key", "pipe", "alice"], monkeypatch) == 2


@pytest.mark.parametrize("arguments", [["trace", "info", "demo"], ["plugins"]])
def test_a_standard_output_that_is_closed_is_no_traceback(arguments: list[str]) -> None:
    program = (
        f"exec {shlex.quote(sys.executable)} -c 'from pdplugins.cli import main; main()' {' '.join(arguments)} >&-"
    )
    done = subprocess.run(["sh", "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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
    monkeypatch.setattr(sys, "argv", ["pdplugins", *words])
    monkeypatch.setattr(cli, "app", typer.Typer(**cli._SETTINGS))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "pdplugins: a process of it was killed, perhaps for want of memory; fewer --jobs or a shorter trace "
        "(--clip-s, --max-requests) needs less\n"
    )


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


@pytest.mark.parametrize(("value", "code"), [("done", 0), (True, 0), (None, 0), (3, 3)])
def test_what_the_command_of_a_plugin_returns_is_no_failure(
    value: object, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = typer.Typer()
    application.callback()(lambda: None)
    application.command("hello")(lambda: value)
    monkeypatch.setattr(sys, "argv", ["pdplugins", "hello"])
    with pytest.raises(SystemExit) as ended:
        cli._run(application, "pdplugins")
    assert ended.value.code == code
