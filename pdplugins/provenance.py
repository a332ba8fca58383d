"""The origin of a result: command line, commit, versions, seed, and whether it was measured or simulated."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pdplugins import __version__
from pdplugins.files import is_folder

Kind = Literal["measured", "simulated"]
"""Whether the numbers of a result were measured or simulated."""
CODE = ("pdplugins", "benchmarks", "configs", "profiles", "hooks")
"""Folders in which a file that git does not know makes a commit dirty."""


def command_line(program: str = "pdplugins", words: Sequence[str] | None = None) -> str:
    """Return the running command line, quoted for a shell, without the folders of this machine.

    :param program: replaces the path of this installation, which does not help a reader.
    :param words: its arguments, if a record should not show all that were typed.
    """
    return shlex.join([program, *map(_portable, sys.argv[1:] if words is None else words)])


def _portable(word: str) -> str:
    """Return `word` with each path outside the current folder cut: a file to its name, a folder to ``DIR``."""
    head, equals, value = word.rpartition("=")
    path = Path(value)  # a ~ here is a letter: the shell has replaced those that are a home
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        value = str(path.relative_to(Path.cwd()))
    elif path.is_absolute() or ".." in path.parts:
        value = "DIR" if is_folder(path) else path.name
    return f"{head}{equals}{value}"


def record(
    kind: Kind, *, seed: int | None, command: str | None = None, took_part: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the origin of a result file: ``kind``, ``command``, ``commit``, ``versions`` and ``seed``.

    :param command: the command line that makes the file; None for the running one.
    :param took_part: distributions whose versions matter, besides pdplugins and Python.
    """
    made = {"kind": kind, "command": command or command_line(), "commit": commit()}
    return {**made, "versions": versions(*took_part), "seed": seed}


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of pdplugins, of Python and of other installed distributions that took part."""
    ours = {"pdplugins": __version__, "python": platform.python_version()}
    return {**ours, **{name: version(name) for name in distributions}}


def commit() -> str:
    """Return the commit of the checkout this package runs from, or its version when it is installed.

    ``-dirty`` means that the code or its data differ from that commit. Results and pages of a run do not count.
    """
    kept_out = ":(top,exclude)benchmarks/results", ":(top,exclude)*.md"
    code = (f":(top){folder}" for folder in CODE)
    try:
        name = _git("rev-parse", "--short=12", "HEAD").stdout.strip()
        changed = _git("diff", "--quiet", "HEAD", "--", ":/", *kept_out).returncode
        new = _git("ls-files", "--others", "--exclude-standard", "--", *code, *kept_out).stdout
    except (OSError, subprocess.SubprocessError):
        return f"pdplugins {__version__}"
    if not name:
        return f"pdplugins {__version__}"
    return f"{name}-dirty" if changed or new else name


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
