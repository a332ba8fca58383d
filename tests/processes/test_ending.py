"""A process ends in time, whatever hangs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pdplugins.processes.ending import HUNG

START = """
import asyncio, socket, time, threading
from pdplugins.processes.ending import on_stop

async def main():
    stopped = asyncio.Event()
    on_stop(lambda number: stopped.set(), {within_s})
    print("up", flush=True)
    {hang}
    await stopped.wait()
    {slow}

asyncio.run(main())
print("ended", flush=True)
"""


def ended(
    hang: str = "", slow: str = "", number: signal.Signals = signal.SIGTERM, within_s: float = 0.5
) -> tuple[int, str]:
    """The exit code and what it said, of a process that gets a signal."""
    code = START.format(hang=hang or "pass", slow=slow or "pass", within_s=within_s)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        said, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


@pytest.mark.moderate
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_ends_by_itself_is_left_alone(number: signal.Signals) -> None:
    assert ended(number=number, within_s=15) == (0, "ended\n")


@pytest.mark.moderate
@pytest.mark.parametrize(
    ("hang", "slow"),
    [
        ("while True: pass", ""),
        ("time.sleep(60)", ""),
        ("", "await asyncio.sleep(60)"),
        ("", "asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)"),
        ("", "threading.Thread(target=time.sleep, args=[60]).start()"),
    ],
    ids=["the loop is stuck", "the loop sleeps", "the stop hangs", "a call in a thread hangs", "a thread hangs"],
)
def test_what_hangs_is_cut_off(hang: str, slow: str) -> None:
    code, said = ended(hang, slow)
    assert code == HUNG
    assert "pdplugins: did not end within 0.5 s, so it was cut off; it was here:\n" in said
    assert "most recent call first" in said, "the stack of each thread"


@pytest.mark.moderate
def test_it_is_cut_off_also_where_nobody_reads_what_it_says() -> None:
    code = START.format(hang="import os\n    while True: os.write(2, bytes(65536))", slow="pass", within_s=0.5)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == HUNG
    finally:
        process.kill()
        process.communicate()
