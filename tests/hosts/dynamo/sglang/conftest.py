"""What the tests with real SGLang workers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rig.servers import Server
from tests.hosts.dynamo.sglang import workers
from tests.hosts.dynamo.sglang.workers import SglangRig


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model."""
    return workers.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A plain server of SGLang, without Dynamo and without us, which starts while others do."""
    log = tmp_path_factory.mktemp("plain") / "plain.log"
    with Server(workers.tree(), model, log, program=workers.interpreter()) as server:
        yield server


@pytest.fixture(scope="module")
def sglang_rig(plain: Server, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangRig]:
    """Two workers and a frontend, for routers of this process."""
    rig = SglangRig(tmp_path_factory.mktemp("rig"), model)
    try:
        rig.start_workers()
        plain.wait()
        yield rig
    finally:
        rig.close()
