"""Reading and clearing Dynamo's file-based discovery."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pdplugins.hosts.dynamo.local.registrations import STALE_S, Registrations


def register(folder: Path, name: str, instance: str, component: str = "backend") -> None:
    """Write what a worker of Dynamo 1.4.2 writes, as far as we read it."""
    key = f"dynamo%2F{component}%2Fgenerate%2F{instance}"
    for bucket, content in (("instances", {}), ("mdc", {"card_json": {"runtime_config": {"stable_routing_id": name}}})):
        (folder / "v1" / bucket).mkdir(parents=True, exist_ok=True)
        (folder / "v1" / bucket / key).write_text(json.dumps(content))


@pytest.fixture
def registrations(tmp_path: Path) -> Registrations:
    return Registrations(tmp_path)


def test_nobody_is_registered_in_an_empty_folder(registrations: Registrations) -> None:
    """Before the first worker there is not even the folder."""
    assert registrations.serving() == {}


def test_a_worker_serves_when_both_of_its_files_are_there(registrations: Registrations, tmp_path: Path) -> None:
    """The card alone, or the endpoint alone, is a worker that is coming or going."""
    register(tmp_path, "prefill-1", "aa", "prefill")
    register(tmp_path, "decode-1", "bb")
    assert registrations.serving() == {"prefill-1": "aa", "decode-1": "bb"}
    (tmp_path / "v1/instances/dynamo%2Fbackend%2Fgenerate%2Fbb").unlink()
    assert registrations.serving() == {"prefill-1": "aa"}


def test_a_card_that_is_being_written_is_read_later(registrations: Registrations, tmp_path: Path) -> None:
    """Half a file is not an error."""
    register(tmp_path, "decode-1", "bb")
    card = tmp_path / "v1/mdc/dynamo%2Fbackend%2Fgenerate%2Fbb"
    whole = card.read_text()
    card.write_text(whole[:10])
    assert registrations.serving() == {}
    card.write_text(whole)
    assert registrations.serving() == {"decode-1": "bb"}


def test_what_a_dead_worker_left_goes_and_the_rest_stays(registrations: Registrations, tmp_path: Path) -> None:
    """All files of one instance go, those of others stay."""
    register(tmp_path, "decode-1", "bb")
    register(tmp_path, "decode-2", "cc")
    query = tmp_path / "v1/instances/dynamo%2Fprefill%2Fworker%5Fkv%5Fquery%2Fbb"
    query.write_text("{}")
    registrations.remove("bb")
    assert registrations.serving() == {"decode-2": "cc"}
    assert not query.exists()
    registrations.remove("bb")


def test_a_worker_that_no_longer_touches_its_files_does_not_serve(tmp_path: Path) -> None:
    """It hangs, and nobody is left to take its files away. The time of day has no part in it."""
    now_s = 0.0
    registrations = Registrations(tmp_path, clock=lambda: now_s)
    register(tmp_path, "decode-1", "bb")
    register(tmp_path, "decode-2", "cc")
    for bucket in ("instances", "mdc"):
        os.utime(tmp_path / f"v1/{bucket}/dynamo%2Fbackend%2Fgenerate%2Fcc", (0, 0))
    for now_s in range(0, 60, 5):
        os.utime(tmp_path / "v1/instances/dynamo%2Fbackend%2Fgenerate%2Fbb", (now_s + 1, now_s + 1))
        assert set(registrations.serving()) == ({"decode-1", "decode-2"} if now_s < STALE_S else {"decode-1"})
    os.utime(tmp_path / "v1/instances/dynamo%2Fbackend%2Fgenerate%2Fcc", (5, 5))
    assert set(registrations.serving()) == {"decode-1", "decode-2"}


@pytest.mark.parametrize("card", ["[]", '{"card_json": 5}', '{"card_json": {"runtime_config": []}}', "\x00", "null"])
def test_a_card_of_nonsense_is_no_worker(registrations: Registrations, tmp_path: Path, card: str) -> None:
    register(tmp_path, "decode-1", "bb")
    (tmp_path / "v1/mdc/dynamo%2Fbackend%2Fgenerate%2Fbb").write_text(card)
    assert registrations.serving() == {}


def test_a_folder_that_is_gone_or_no_folder_has_no_workers(registrations: Registrations, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/instances").write_text("")
    assert registrations.serving() == {}
    registrations.remove("bb")
