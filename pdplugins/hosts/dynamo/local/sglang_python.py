"""Whether a Python can run SGLang's workers; the launcher's own need not have SGLang."""

from __future__ import annotations

import subprocess

from pdplugins.errors import HostError, one_line

NEEDED = ("sglang", "dynamo.sglang", "pdplugins")
"""Modules of the Python that runs the workers."""
LOOK_S = 60.0


def check_python(path: str) -> None:
    """Raise HostError when the Python at `path` cannot run the workers."""
    look = f"import importlib.util as u\nfor name in {NEEDED!r}:\n    u.find_spec(name) or print(name)"
    try:
        done = subprocess.run([path, "-c", look], capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"--engine-python {path}: cannot run ({one_line(error)}); name a Python with SGLang") from None
    missing = done.stdout.split()
    if "dynamo.sglang" not in missing and done.returncode:  # it has no package dynamo to look into
        missing.append("dynamo.sglang")
    if missing:
        raise HostError(
            f"--engine sglang: {path} has no {', no '.join(missing)}; install sglang, ai-dynamo==1.4.2 and pdplugins "
            "there, or name another Python with --engine-python"
        )
