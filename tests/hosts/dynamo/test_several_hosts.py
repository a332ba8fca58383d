"""The parts of `dynamo serve` on three hosts, over etcd and NATS, while links are cut and healed.

What has to hold is in `benchmarks/rig/verdict.py`; `several_hosts.py` ends with status 1 where it does not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rig import cluster
from tests.waiting import until

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "several_hosts.py"


@pytest.fixture
def hosts() -> None:
    """Skip where this machine cannot be several hosts."""
    if (why := cluster.lacking()) is not None:
        pytest.skip(why)


def alive(mark: str) -> list[str]:
    """The command lines that have `mark` in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if mark in line]


@pytest.mark.moderate
def test_nothing_remains_of_a_script_that_is_killed(hosts: None, tmp_path: Path) -> None:
    mark = f"97{os.getpid()}"  # seconds that nothing else sleeps for
    ready = tmp_path / "ready"
    inside = f"ip netns add one; ip netns exec one sleep {mark} & touch {ready}; sleep {mark}"
    process = subprocess.Popen([*cluster.isolated(), "sh", "-c", f"mount -t tmpfs none /run; {inside}"])
    assert until(lambda: ready.exists() and len(alive(f"sleep {mark}")) >= 3, 30)  # the shell's own has it too
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert until(lambda: not alive(f"sleep {mark}"), 30)
    assert not Path("/run/netns/one").exists()


@pytest.mark.dynamo
@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(500)
def test_cut_links_cost_nobody_what_can_still_be_reached(hosts: None, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--logs", str(tmp_path / "logs")],
        env=env,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    facts = json.loads(done.stdout)
    assert [cut["cut"] for cut in facts["cuts"]] == ["worker", "router, briefly", "router", "etcd"]
    for cut in facts["cuts"]:
        sys.stdout.write(
            f"{cut['cut']} cut for {cut['lasted_s']} s, all back after {cut['back_s']} s: {cut['clients']}\n"
        )
