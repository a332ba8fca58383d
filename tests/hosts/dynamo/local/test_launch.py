"""What is left of a launcher that was killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pdplugins.hosts.dynamo.local.launch import PREFIX, sweep


def test_the_next_start_sweeps_up_after_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of dead launchers go; those of living ones, kept logs and strangers stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, living, logs, stranger = (
        tmp_path / name
        for name in (f"{PREFIX}{2**22 + 1}-x", f"{PREFIX}{os.getpid()}-x", f"{PREFIX}{2**22 + 2}-x", "other-1-x")
    )
    for folder in (dead, living, stranger):
        (folder / "discovery").mkdir(parents=True)
    (logs / "logs").mkdir(parents=True)
    sweep()
    assert not dead.exists()
    assert living.exists()
    assert logs.exists()
    assert stranger.exists()
