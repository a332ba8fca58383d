"""A file of keys of clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdplugins.gateway.access import api_keys


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(api_keys, "LOOK_S", 0.05)
    return tmp_path / "keys"
