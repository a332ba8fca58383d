"""A real Prometheus, where one is installed."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdplugins.processes.ports import free_ports
from tests.waiting import until


def tool(name: str, package: str) -> str:
    """Return where a program is, or skip the test."""
    if (found := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {package})")
    return found


@contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """Run Prometheus over the history in `folder`/data; yield its HOST:PORT once it answers."""
    program, listen = tool("prometheus", "prometheus"), f"127.0.0.1:{free_ports(1)[0]}"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *words, f"--web.listen-address={listen}"], stdout=log, stderr=log)
    try:
        assert until(lambda: process.poll() is not None or _is_ready(listen)), _end_of(folder / "log")
        assert process.poll() is None, _end_of(folder / "log")
        yield listen
    finally:
        process.kill()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _end_of(log: Path) -> str:
    return log.read_text()[-2000:]
