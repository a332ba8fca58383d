"""Stand-ins for the drivers' libraries: C libraries that the tests compile, under the vendors' own Python bindings."""

from __future__ import annotations

import ctypes as c
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("cc")
NO_COMPILER = "no C compiler (gcc or cc) to build the stand-in library"
MOST_GPUS, MOST_WRITES = 128, 65536
BEGUN = 2**32 - 1
"""Result of a delayed write that has only begun."""


class Gpu(c.Structure):
    """`gpu_t` of node.h."""

    _fields_ = [
        ("demand_w", c.c_double),
        ("kept_w", c.c_double),
        ("since_s", c.c_double),
        ("energy_j", c.c_double),
        ("read_delay_s", c.c_double),
        ("write_delay_s", c.c_double),
        ("limit_mw", c.c_uint32),
        ("min_mw", c.c_uint32),
        ("max_mw", c.c_uint32),
        ("default_mw", c.c_uint32),
        ("read_fault", c.c_uint32),
        ("write_fault", c.c_uint32),
        ("good_writes", c.c_uint32),
        ("deaf", c.c_uint32),
        ("persistent", c.c_uint32),
        ("no_instant", c.c_uint32),
    ]


class Write(c.Structure):
    """`write_t` of node.h."""

    _fields_ = [("at_s", c.c_double), *((name, c.c_uint32) for name in ("pid", "gpu", "mw", "result"))]


class Node(c.Structure):
    """`node_t` of node.h."""

    _fields_ = [
        *((name, c.c_uint32) for name in ("magic", "gpus", "init_fault", "root_only")),
        ("tau_s", c.c_double),
        ("clock_s", c.c_double),
        ("list_delay_s", c.c_double),
        ("writes", c.c_uint32),
        ("base", c.c_uint32),
        ("lock", c.c_byte * 40),
        ("gpu", Gpu * MOST_GPUS),
        ("trace", Write * MOST_WRITES),
    ]

    def limits_w(self) -> list[float]:
        """The caps in force."""
        return [self.gpu[i].limit_mw / 1e3 for i in range(self.gpus)]

    def written(self, since: int = 0) -> Iterator[tuple[int, float, int]]:
        """Yield GPU, watts and result of every write, in the order in which the library saw them."""
        for i in range(since, self.writes):
            write = self.trace[i % MOST_WRITES]
            yield write.gpu, write.mw / 1e3, write.result

    def sums_w(self, begin_w: list[float], since: int = 0) -> Iterator[float]:
        """Yield the sum of all caps after every write that the library took."""
        caps_w = list(begin_w)
        yield sum(caps_w)
        for gpu, watts, result in self.written(since):
            if result == 0:
                caps_w[gpu] = watts
                yield sum(caps_w)


@dataclass(frozen=True)
class Standin:
    """One node of GPUs that are not there."""

    node: Node
    environment: dict[str, str]
    """For processes that shall see this node."""


@cache
def built(source: str, name: str, folder: Path) -> Path:
    """Compile a library once."""
    assert COMPILER is not None
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / name
    flags = ["-O1", "-shared", "-fPIC", "-pthread", f"-I{SOURCES}"]
    subprocess.run([COMPILER, *flags, "-o", str(library), str(source), "-lm"], check=True)
    return library


def nvml_library(folder: Path) -> Path:
    """Build the stand-in for libnvidia-ml.so.1."""
    return built(str(SOURCES / "nvml.c"), "libnvidia-ml.so.1", folder)


def amd_library(folder: Path, package: Path) -> Path:
    """Build the stand-in for libamd_smi.so that a version of `amdsmi` can load.

    The binding looks up all its symbols when it is imported, so each of them is there; those that nothing here needs
    say that they are not supported. The layout of structures is that of the binding.
    """
    wrapper = (package / "amdsmi_wrapper.py").read_text()
    symbols = sorted(set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper)))
    body = (SOURCES / "amd.c").read_text()
    there = set(re.findall(r"^int (amdsmi_\w+)\(", body, re.MULTILINE))
    stubs = [f"int {name}(void) {{ return 2; }}" for name in symbols if name not in there]
    socket = "#define HAS_SOCKET_POWER\n" if "('socket_power'" in _fields(wrapper, "amdsmi_power_info_t") else ""
    structs = _struct(wrapper, "amdsmi_power_cap_info_t") + _struct(wrapper, "amdsmi_power_info_t")
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "amd_smi.c"
    source.write_text("\n".join(["#include <stdint.h>", structs, socket, body, *stubs, ""]))
    return built(str(source), "libamd_smi.so", folder)


CTYPES = {"ctypes.c_uint64": "uint64_t", "ctypes.c_uint32": "uint32_t", "ctypes.c_ubyte": "uint8_t"}


def _fields(wrapper: str, name: str) -> str:
    found = re.search(rf"struct_{name}\._fields_ = \[(.*?)\]\n", wrapper, re.DOTALL)
    assert found is not None, name
    return found[1]


def _struct(wrapper: str, name: str) -> str:
    fields = re.findall(r"\('(\w+)', (ctypes\.\w+)(?: \* (\d+))?\)", _fields(wrapper, name))
    members = " ".join(f"{CTYPES[kind]} {field}{f'[{count}]' if count else ''};" for field, kind, count in fields)
    return f"typedef struct __attribute__((packed)) {{ {members} }} {name};\n"


def mapped(state: Path) -> Node:
    """Map the state of a node."""
    with state.open("r+b") as file:
        return Node.from_buffer(mmap.mmap(file.fileno(), c.sizeof(Node)))


def standin(library: Path, state: Path) -> Standin:
    """Make a node whose state lies in `state`."""
    loaded = c.CDLL(str(library))
    os.environ["STANDIN_NODE"] = str(state)
    begin, end = (loaded.nvmlInit_v2, loaded.nvmlShutdown) if "nvidia" in library.name else (loaded.amdsmi_init, None)
    assert begin() == 0
    if end is not None:
        assert end() == 0
    node = mapped(state)
    paths = {"LD_LIBRARY_PATH": str(library.parent), "ROCM_PATH": str(library.parent.parent)}
    return Standin(node, {**os.environ, **paths, "PYTHONPATH": ":".join(filter(None, sys.path))})


def use(binding: Any, library: Path) -> None:
    """Let nvidia-ml-py use a library in this process, as LD_LIBRARY_PATH does in a new one."""
    binding.nvmlLib = c.CDLL(str(library))
