"""A node of GPUs that are not there, under the vendors' own bindings."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.rig.gpus import nodes
from benchmarks.rig.gpus.nodes import COMPILER, NO_COMPILER, Standin
from pdplugins.power.nvml import NvmlBackend


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's library."""
    if COMPILER is None:
        pytest.skip(NO_COMPILER)
    if importlib.util.find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed")
    return nodes.nvml_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvidia(nvml_library: Path, tmp_path: Path) -> Iterator[Standin]:
    """Eight NVIDIA GPUs that this and other processes see."""
    import pynvml  # noqa: PLC0415 - an extra

    before = dict(os.environ)
    made = nodes.standin(nvml_library, tmp_path / "node")
    nodes.use(pynvml, nvml_library)
    yield made
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def nvml(nvidia: Standin) -> Iterator[NvmlBackend]:
    """The backend over them, in this process."""
    backend = NvmlBackend()
    yield backend
    backend.close()
