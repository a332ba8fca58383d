"""Outputs are refused in time, and never half-written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError
from pdplugins.files import check_apart, check_outputs, is_file, is_folder, read_limited, whole, write_whole
from tests.programs import PDPLUGINS


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "no" / "out.json", "there is no folder"),
        (tmp_path, "is a folder"),
        (Path("/proc/out.json"), "give a path that can be written"),  # no folder of a user's: root may write anywhere
    ):
        with pytest.raises(ConfigError, match=why):
            check_outputs(None, path)


def test_looking_leaves_everything_as_it_was(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    check_outputs(old, tmp_path / "new.json", None)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.json": "old"}


def test_an_output_is_no_input_and_no_other_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace, new = Path("tr.jsonl"), Path("new.json")
    trace.write_text("x")
    Path("link").symlink_to(trace)
    Path("hard").hardlink_to(trace)
    for same in (trace, tmp_path / trace, Path("link"), Path("hard")):
        with pytest.raises(ConfigError, match=f"^--json {same} is also --trace; name another file$"):
            check_apart({"--json": same}, {"--trace": "tr.jsonl"})
    for one, other in ((new, tmp_path / new), (Path("-"), Path("-")), (Path("-"), Path("/dev/stdout"))):
        with pytest.raises(ConfigError, match=f"^--html {other} is also --json; name another file$"):
            check_apart({"--json": one, "--html": other}, {})
    assert trace.read_text() == "x"


def test_what_no_file_is_lost_by_may_be_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_apart({"--json": Path("/dev/null"), "--html": Path("/dev/null"), "--records": None}, {"--trace": None})
    check_apart({"--json": Path("demo"), "--html": Path("x" * 300)}, {"--trace": "demo", "--profile": "y" * 300})


def test_an_error_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")

    def fail_half_way() -> None:
        with whole(old) as scratch:
            scratch.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.json": "old"}
    write_whole(old, "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.json": "new"}


def test_a_file_behind_standard_output_keeps_what_it_has(tmp_path: Path) -> None:
    """As with ``pdplugins simulate … --json - >> results``."""
    code = "from pathlib import Path; from pdplugins.files import write_whole; write_whole(Path('-'), 'new')"
    log = tmp_path / "results"
    log.write_text("old ")
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert log.read_text() == "old new"


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
@pytest.mark.parametrize(
    "command",
    [
        ["trace", "make", "demo", "--max-requests", "2"],
        ["profile", "export-npz", "h100/llama-3.1-70b-fp8", "--force"],
    ],
)
def test_every_output_goes_behind_what_a_file_has(command: list[str], name: str, tmp_path: Path) -> None:
    log, alone = tmp_path / "results", tmp_path / "alone"
    log.write_text("old ")
    with log.open("a") as file:
        subprocess.run([*PDPLUGINS, *command, "--out", name], stdout=file, check=True)
    subprocess.run([*PDPLUGINS, *command, "--out", str(alone)], stdout=subprocess.DEVNULL, check=True)
    assert log.read_bytes() == b"old " + alone.read_bytes()


def test_a_device_is_written_to_and_not_replaced() -> None:
    check_outputs(Path("/dev/null"))
    write_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ConfigError, match="a link that leads to itself; give a path that can be written"):
        check_outputs(tmp_path / "a")


def test_a_reader_that_has_had_enough_of_standard_output_is_no_error_to_report() -> None:
    code = (
        "from pathlib import Path; from pdplugins.files import write_whole; write_whole(Path('-'), 'line\\n' * 10**6)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        assert done.stdout.readline() == "line\n"
        done.stdout.close()
        said = done.stderr.read()
    assert "BrokenPipeError" in said
    assert "ConfigError" not in said


def test_two_processes_that_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    """Each file is whole, whoever comes last, and nobody's work is lost because another one looked or ended."""
    out = tmp_path / "out.json"
    code = "import sys; from pathlib import Path; from pdplugins.files import check_apart, check_outputs, write_whole\n"
    code += "path = Path(sys.argv[1])\n"
    code += "for _ in range(200): check_outputs(path); write_whole(path, sys.argv[2] * 50_000)"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(out), letter]) for letter in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert out.read_text() in ("a" * 50_000, "b" * 50_000)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_file_is_read_up_to_a_size_and_a_pipe_only_where_it_may_be(tmp_path: Path) -> None:
    path, pipe = tmp_path / "f", tmp_path / "pipe"
    path.write_bytes(b"x" * 2048)
    os.mkfifo(pipe)
    assert read_limited(path, 2048) == b"x" * 2048
    for one, pipes, why in (
        (path, False, "larger than 1 KiB; is it the right file"),
        (Path("/dev/zero"), True, "larger than 1 KiB; is it the right file"),
        (Path("/dev/zero"), False, "a pipe or a device; write it to a file first"),
        (pipe, False, "a pipe or a device; write it to a file first"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_limited(one, 1024, pipes=pipes)
    with pytest.raises(IsADirectoryError):
        read_limited(tmp_path, 1024)


def test_a_name_that_is_too_long_is_no_file(tmp_path: Path) -> None:
    assert is_file(Path(__file__))
    assert not is_file(tmp_path)
    assert not is_file(Path("x" * 5000))
    assert is_folder(tmp_path)
    assert not is_folder(Path("x" * 5000))


def test_what_the_file_system_refuses_to_look_at_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", refuses)
        with pytest.raises(ConfigError, match="out: Permission denied; give a path"):
            check_outputs(tmp_path / "out")
    monkeypatch.setattr(Path, "exists", refuses)
    with pytest.raises(ConfigError, match="out: Permission denied; give a path"):
        check_outputs(tmp_path / "out")
    with pytest.raises(ConfigError, match="out: Permission denied; give a path"):
        write_whole(tmp_path / "out", "text")


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, old in (("old", "old"), ("new", None)):
        target, link = tmp_path / "there" / name, tmp_path / name
        if old is not None:
            target.write_text(old)
        link.symlink_to(target)
        check_outputs(link)
        write_whole(link, "text")
        assert (link.is_symlink(), target.read_text()) == (True, "text")
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["new", "old"]


def test_a_link_to_a_device_is_written_as_the_device_is(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    check_outputs(link)
    write_whole(link, "text")
    assert link.is_symlink()
    assert Path("/dev/null").is_char_device()


def test_a_file_that_is_replaced_keeps_its_mode_and_a_secret_one_gets_its_own(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for before, asked, after in ((0o600, 0o666, 0o600), (0o664, 0o666, 0o664), (0o644, 0o600, 0o600)):
        path.write_text("old")
        path.chmod(before)
        write_whole(path, "text", asked)
        assert stat.S_IMODE(path.stat().st_mode) == after
