"""The lock, and the caps from before on the disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from pdplugins.errors import ConfigError, HostError
from pdplugins.power import saved as module
from pdplugins.power.saved import SavedCaps, saved_caps


def test_caps_are_kept_until_they_are_cleared(tmp_path: Path) -> None:
    one = SavedCaps(tmp_path / "state")
    one.save({"GPU-a": 650.5})
    one.close()
    two = SavedCaps(tmp_path / "state")
    assert two.load() == {"GPU-a": 650.5}
    two.clear()
    assert two.load() == {}
    two.close()


def test_a_second_process_is_told_who_has_the_lock(tmp_path: Path) -> None:
    one = SavedCaps(tmp_path)
    with pytest.raises(HostError, match=f"process {os.getpid()} sets the caps"):
        SavedCaps(tmp_path)
    one.close()
    SavedCaps(tmp_path).close()


def test_after_a_restart_of_the_machine_nothing_is_to_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SavedCaps(tmp_path)
    one.save({"GPU-a": 650.0})
    boot = tmp_path / "boot"
    boot.write_text("another start")
    monkeypatch.setattr(module, "BOOT_ID", boot)
    assert one.load() == {}
    one.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"caps_w": {}}',
        "{" * 10_000,
        '{"schema": 1, "boot": "B"}',
        '{"boot": "B", "caps_w": {"a": 1}}',
        '{"schema": 1, "boot": "B", "caps_w": {"a": "x"}}',
        '{"schema": 1, "boot": "B", "caps_w": {"a": "1"}}',
        '{"schema": 1, "boot": "B", "caps_w": {"a": true}}',
        '{"schema": 1, "boot": "B", "caps_w": {"a": -1}}',
        '{"schema": 1, "boot": "B", "caps_w": {"a": 1' + "0" * 400 + "}}",
    ],
)
def test_a_file_that_is_none_stops_the_start_instead_of_being_forgotten(tmp_path: Path, text: str) -> None:
    boot = module.BOOT_ID.read_text().strip()
    (tmp_path / "caps.json").write_text(text.replace('"B"', json.dumps(boot)))
    with pytest.raises(ConfigError, match="set the caps by hand, then remove it"):
        saved_caps(tmp_path)


def test_a_file_of_another_version_is_not_taken_for_one_of_ours(tmp_path: Path) -> None:
    boot = module.BOOT_ID.read_text().strip()
    (tmp_path / "caps.json").write_text(json.dumps({"schema": 9, "boot": boot, "caps_w": {"a": 1}}))
    with pytest.raises(ConfigError, match="is of another version of pdplugins; restore with that one"):
        saved_caps(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = Path("/") / "pdplugins-no-such-folder"
    os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match="start as root, or name a folder of your own"):
            SavedCaps(folder)
    finally:
        os.seteuid(0)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line_that_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = f"node.state {tmp_path}: No space left on device; make room there"
    one = SavedCaps(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", full)
        with pytest.raises(ConfigError, match=says):
            one.save({"GPU-a": 650.0})
    one.close()
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "pwrite", full)
        with pytest.raises(ConfigError, match=says):
            SavedCaps(tmp_path)
    SavedCaps(tmp_path).close()  # nobody has the lock


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        SavedCaps(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_in_the_place_of_the_caps_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    """Who can write to the folder could have root overwrite any file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"schema": 1, "boot": module.boot(), "caps_w": {"a": 1}}))
    before = elsewhere.read_text()
    state = tmp_path / "state"
    one = SavedCaps(state)
    (state / "caps.json").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"caps\.json cannot be read"):
        one.load()
    one.save({"GPU-a": 650.0})
    assert one.load() == {"GPU-a": 650.0}
    assert elsewhere.read_text() == before
    assert sorted(path.name for path in state.iterdir()) == ["caps.json", "lock"]
    one.close()


def test_a_pipe_in_the_place_of_the_caps_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "caps.json")
    with pytest.raises(ConfigError, match="it is no file"):
        saved_caps(tmp_path)
