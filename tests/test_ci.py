"""`.ci/run` ends with 0 where all of its commands do, and only there. Its commands are stand-ins here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.consoles import ROOT

STANDS_IN = """\
#!/usr/bin/env bash
words="$(basename "$0") $*"
case "$words" in
  *"$FAILS"*) echo "$FAILS is broken"; exit 3 ;;
  "python3.11 -m venv "*) mkdir -p "$3/bin"; for name in pip pdplugins dynamo; do cp "$0" "$3/bin/$name"; done ;;
  *--json*) written=${words##*--json }; echo '{"kind": "measured"}' > "${written%% *}" ;;
esac
"""
"""A command that does nothing but write what is looked at after it. It fails where `FAILS` is in its words."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with `.ci/run` and stand-ins for all that it calls of the project and of Python."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    for name in ("bin/make", "bin/python3.11", "bin/apt-get", ".venv/bin/python"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(STANDS_IN, encoding="utf-8")
        program.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    return tmp_path


def ci(clone: Path, fails: str = "no command has these words") -> subprocess.CompletedProcess[str]:
    places = {"PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(clone / "temporary"), "FAILS": fails}
    env = os.environ | places
    return subprocess.run([clone / ".ci/run"], env=env, capture_output=True, text=True, timeout=60, check=False)


def test_it_ends_well_and_leaves_nothing(clone: Path) -> None:
    done = ci(clone)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "== done"), done
    assert list((clone / "temporary").iterdir()) == []


@pytest.mark.parametrize("command", ["make test-long", "make docs", ".venv-sglang", "doctor", "make serve", "consoles"])
def test_it_fails_where_a_command_does(clone: Path, command: str) -> None:
    done = ci(clone, command)
    assert done.returncode != 0
    assert "== done" not in done.stdout
    assert f"{command} is broken" in done.stdout + done.stderr
    assert list((clone / "temporary").iterdir()) == []
