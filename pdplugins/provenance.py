"""The origin of a result: command line, commit, versions, seed, and whether it was measured or simulated."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pdplugins import __version__

Kind = Literal["measured", "simulated"]
"""Whether the numbers of a result were measured or simulated."""


def command_line(program: str = "pdplugins", words: Sequence[str] | None = None) -> str:
    """Return the running command line, quoted for a shell.

    :param program: replaces the path of this installation, which does not help a reader.
    :param words: its arguments, if a record should not show all that were typed.
    """
    return shlex.join([program, *(sys.argv[1:] if words is None else words)])


def record(kind: Kind, *, seed: int | None, command: str | None = None) -> dict[str, Any]:
    """Return the origin of a result file: ``kind``, ``command``, ``commit`` and ``seed``.

    :param command: the command line that makes the file; None for the running one.
    """
    return {"kind": kind, "command": command or command_line(), "commit": commit(), "seed": seed}


def versions(*distributions: str) -> dict[str, str]:
    """Return the versions of pdplugins and of other installed distributions that took part."""
    return {"pdplugins": __version__, **{name: version(name) for name in distributions}}


def commit() -> str:
    """Return the commit of the checkout this package runs from, or its version when it is installed.

    ``-dirty`` means that the code or its data differ from that commit. Results and pages of a run do not count.
    """
    try:
        name = _git("rev-parse", "--short=12", "HEAD").stdout.strip()
        changed = _git("diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)benchmarks/results", ":(top,exclude)*.md")
    except (OSError, subprocess.SubprocessError):
        return f"pdplugins {__version__}"
    if not name:
        return f"pdplugins {__version__}"
    return f"{name}-dirty" if changed.returncode else name


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
