"""Real SGLang on a CPU behind Dynamo: how its workers run, what they serve, and what a plain server says to it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.rig import servers
from pdplugins.config import Config
from pdplugins.hosts.dynamo.local.engine import Engine
from pdplugins.hosts.dynamo.local.registrations import Registrations
from pdplugins.hosts.dynamo.local.sglang_engine import Sglang
from pdplugins.hosts.dynamo.local.sglang_options import SglangSpec
from pdplugins.hosts.dynamo.router.places import NAMESPACE
from tests.hosts.dynamo.router.rig import MODEL, Rig

VERSION = "0.5.16"
"""What Dynamo 1.4.2 is made for."""
OPTIONS = (
    *("--device", "cpu", "--load-format", "safetensors", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--dtype", "float32", "--page-size", "1"),
    *("--max-running-requests", "32", "--chunked-prefill-size", "256", "--max-total-tokens", "16384"),
    *("--skip-server-warmup", "--sleep-on-idle"),
)
"""Of each worker. Dynamo reads options before SGLang's plugins are there, which seeds on a CPU would need."""
START_S = 600.0
"""A guard: a crowded small machine takes minutes to import SGLang in each of its processes."""
VOCABULARY = range(4, 400)


def tree() -> Path:
    """The folder with the version of SGLang; without it the test is skipped."""
    found = {servers.version_of(tree): tree for tree in servers.trees()}
    return found.get(VERSION) or pytest.skip(f"no SGLang {VERSION} here; run make test-dynamo-sglang")


def program(folder: Path) -> Path:
    """Write a program that is a Python with SGLang and Dynamo."""
    path = folder / "python"
    values = " ".join(f"{name}='{value}'" for name, value in servers.on_cpu(tree()).items())
    path.write_text(f'#!/bin/sh\nexec env {values} "{interpreter()}" -W ignore "$@"\n')
    path.chmod(0o755)
    return path


def interpreter() -> str:
    """The Python that has SGLang and Dynamo."""
    return os.environ.get("PDPLUGINS_SGLANG_PYTHON") or pytest.skip("PDPLUGINS_SGLANG_PYTHON names no Python")


def make_model(folder: Path) -> Path:
    """Write the tiny model with the Python that has PyTorch."""
    path = folder / MODEL
    make = f"from pathlib import Path; from benchmarks.rig import tiny_model; tiny_model.make(Path({str(path)!r}))"
    subprocess.run([interpreter(), "-c", make], check=True, cwd=Path(__file__).parents[4])
    return path


class SglangRig(Rig):
    """Our router in this process, on live workers of SGLang that do both phases."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.model = model
        super().__init__(folder)

    def make_engine(self, broker_url: str) -> Engine:
        """Workers without a batch scheduler of ours: routers come and go here, and the workers stay."""
        spec = SglangSpec(self.model, str(program(self.folder)), OPTIONS)
        engine = Sglang(self.folder, MODEL, Config.model_validate({"planner": "static"}), 0.0, broker_url, spec)
        engine.prepare()
        return engine

    def start_workers(self) -> None:
        """Return once two workers serve."""
        workers, found = self.workers(1, 1, both=True), Registrations(self.engine.discovery)
        deadline_s = time.monotonic() + START_S
        while not workers.keys() <= found.serving().keys():
            for worker in workers.values():
                assert worker.process.poll() is None, (self.folder / f"{worker.name}.log").read_text()[-3000:]
            assert time.monotonic() < deadline_s, f"no workers within {START_S:.0f} s"
            time.sleep(0.2)

    def namespace(self, prefill: int, decode: int, *, both: bool) -> str:
        """The launcher's: these workers are told their endpoint."""
        return NAMESPACE


@dataclass(frozen=True)
class Ask:
    """One request, decoded greedily."""

    prompt: Sequence[int]
    tokens: int
    stream: bool = False
    session: str | None = None

    @classmethod
    def drawn(cls, rng: random.Random, session: str | None = None) -> Ask:
        """A short or a long prompt, a short or a longer answer."""
        prompt = rng.choices(VOCABULARY, k=rng.choice([5, 40, 150, 257, 600]))
        return cls(prompt, rng.choice([1, 4, 12, 24]), rng.random() < 0.5, session)

    async def plain(self, client: aiohttp.ClientSession, url: str) -> list[int]:
        """What a plain server of SGLang says."""
        sampling = {"max_new_tokens": self.tokens, "ignore_eos": True, "temperature": 0}
        body = {"input_ids": list(self.prompt), "sampling_params": sampling}
        async with client.post(f"{url}/generate", json=body) as answer:
            return list((await answer.json())["output_ids"])

    async def send(self, client: aiohttp.ClientSession, url: str) -> tuple[list[int], Mapping[str, int]]:
        """Ask Dynamo's frontend. Return the token ids of the answer, and the usage where that was told."""
        body = {
            "model": MODEL,
            "prompt": list(self.prompt),
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": self.stream,
            "nvext": {"extra_fields": ["completion_token_ids"]},
        }
        headers = {} if self.session is None else {"x-dynamo-session-id": self.session}
        async with client.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            events = [await answer.json()] if not self.stream else [each async for each in _events(answer)]
        ids = [token for event in events for token in (event.get("nvext") or {}).get("completion_token_ids") or ()]
        return ids, next((event["usage"] for event in events if event.get("usage")), {})


async def _events(answer: aiohttp.ClientResponse) -> Any:
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])
