"""``python -m pdplugins.sim.compile``: compile the engine with mypyc. Needs mypy and a C compiler; takes a minute."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pdplugins.errors import HostError
from pdplugins.sim._speedups import HERE, MODULES, folder


def build() -> Path:
    """Compile the engine into the cache and return the folder. Raises HostError with what is missing."""
    target = folder()
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(prefix="pdplugins-") as scratch:
        work = Path(scratch)
        shutil.copytree(HERE.parent, work / "pdplugins", ignore=shutil.ignore_patterns("_data", "__pycache__"))
        files = [f"pdplugins/sim/{name}.py" for name in MODULES]
        command = [sys.executable, "-m", "mypyc", "--ignore-missing-imports", "--follow-imports=silent", *files]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        built = [*work.glob("*__mypyc.*.so"), *(work / "pdplugins" / "sim").glob("*.so")]
        if done.returncode or len(built) <= len(MODULES):
            last = " ".join((done.stderr or done.stdout).split())[-300:]
            raise HostError(
                f"simulator: not compiled, plain Python runs instead; install mypy and a C compiler ({last})"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=target.parent))
        for file in built:
            shutil.copy2(file, staged / file.name)
        staged.replace(target)
    return target


if __name__ == "__main__":
    try:
        sys.stdout.write(f"compiled into {build()}\n")
    except HostError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
