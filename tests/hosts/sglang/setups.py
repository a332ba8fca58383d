"""The setups in which the tests run real SGLang servers, and the servers of the one that runs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.rig import servers
from benchmarks.rig.servers import Server
from pdplugins.resources import DECISION_LOG_VARIABLE
from tests.hosts.sglang.cores import busiest

CHUNK = 256
"""Tokens of one prefill step of the servers, unless a batch scheduler says less."""


@dataclass(frozen=True, eq=False)
class Setup:
    """Two servers and how they run: dual-role instances, or stock ones that prefill and decode."""

    version: str
    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 16384
    stock: bool = False
    alike: bool = False
    """The unified server has the same options."""

    @property
    def unified_options(self) -> tuple[str, ...]:
        return self.options if self.alike else ()

    def __str__(self) -> str:
        return f"{self.version}-{self.name}"


DUAL = {"sglang": {"dual_role": True}}
NO_OVERLAP = ("--disable-overlap-schedule",)
MIXED = ("--enable-mixed-chunk",)
RETRACT = {"SGLANG_TEST_RETRACT": "true"}
"""SGLang then retracts running requests every few steps, as it does when the KV cache is full."""
TIMEOUT_S = 45
TIMEOUTS = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(TIMEOUT_S),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(TIMEOUT_S),
}
SLO_SIZED = {"slo": {"tpot_s": 0.02}, "batch_scheduler": {"name": "dynaserve"}}
DECODE_FIRST = {"batch_scheduler": {"name": "arrow", "step_tokens": 200}}
VERSIONS = ["0.5.16", "0.5.23"]
SETUPS = [
    Setup("0.5.16", "slo-sized-mixed-steps-little-cache", SLO_SIZED, MIXED, tokens=3000),
    Setup("0.5.16", "no-overlap-reordered", {"batch_scheduler": "ampd"}, NO_OVERLAP, TIMEOUTS),
    Setup("0.5.23", "decode-first-mixed-steps", DECODE_FIRST, MIXED, TIMEOUTS),
    Setup("0.5.23", "no-overlap-gathered-retracting", {"batch_scheduler": "dopd"}, NO_OVERLAP, RETRACT),
]
"""Dual-role instances. Between them these cover what may interact."""
ROOMY = [SETUPS[1], SETUPS[2]]
"""One of each version whose KV cache is large and whose requests are not retracted."""
STOCK = [Setup(version, "stock", stock=True) for version in VERSIONS]
ALL_LOGGED = {"decision_log": {"sample": 1}}
FUSED = [
    Setup(
        version, "fusion", {"slo": {"ttft_s": 2.0, "tpot_s": 0.05}, "bundle": {"name": "fusion"}, **ALL_LOGGED}, MIXED
    )
    for version in VERSIONS
]
"""Dual-role instances of which all parts are fusion's, within the engine and before it."""


def on(*setups: Setup) -> pytest.MarkDecorator:
    """Run a test on the servers of each of these setups; its argument `bench` has them."""
    return pytest.mark.parametrize("bench", setups, ids=str, indirect=True)


@dataclass(frozen=True)
class Bench:
    """Servers that run."""

    a: Server
    b: Server
    unified: Server
    setup: Setup

    @property
    def pair(self) -> tuple[Server, Server]:
        return self.a, self.b

    def decision_logs(self) -> list[Path]:
        """Return what the engines of both log, one for each process that has decided."""
        named = (Path(server.env[DECISION_LOG_VARIABLE]) for server in self.pair)
        return [log for path in named for log in path.parent.glob(f"{path.stem}-*{path.suffix}")]

    def note_busy(self) -> None:
        """Warn of threads that keep a core busy although nothing has been asked for lately."""
        for server in () if self.setup.stock else self.pair:
            if server.runs and (threads := busiest(server.process.pid)):
                warnings.warn(f"{server.log.name} is busy with nothing to do: {threads}", stacklevel=2)

    def healthy(self) -> None:
        """Fail when a server has died."""
        for server in (self.a, self.b, self.unified):
            assert server.runs, f"{server.log}:\n{server.tail()}"


class Pool:
    """The servers of one setup, and a unified server of its version, which setups share where it has the same options.

    :param model: folder of the model.
    :param folder: where configs and logs go.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._bench: Bench | None = None
        self._numbers = itertools.count()
        self._failed: dict[Setup, BaseException] = {}

    def bench(self, setup: Setup) -> Bench:
        """Start the servers of `setup`, unless they run; those of another one are stopped first."""
        if setup in self._failed:
            pytest.fail(f"the servers of {setup} did not start before: {self._failed[setup]}")
        last = self._bench
        if last is not None and last.setup is setup and all(server.runs for server in (*last.pair, last.unified)):
            return last
        unified = self._stopped(setup)
        pair = self._dual(setup) if not setup.stock else self._stock(setup)
        bench = self._bench = Bench(*pair, unified or self._server(setup, "unified", [*setup.unified_options]), setup)
        started = [server.start() for server in (*pair, bench.unified) if server is not unified]
        try:
            for server in started:
                server.wait()
        except (RuntimeError, TimeoutError) as error:
            self._failed[setup] = error
            self.stop()
            raise
        return bench

    def another(self, setup: Setup) -> Server:
        """A dual-role instance beside the two of `setup`; it is the caller's."""
        return self._dual(setup, "c")[0]

    def stop(self) -> None:
        """Stop all servers."""
        if self._bench is not None:
            servers.stop(*self._bench.pair, self._bench.unified)
            self._bench = None

    def _stopped(self, setup: Setup) -> Server | None:
        """Stop the servers of the last setup but for its unified server, when that serves `setup` as well."""
        last = self._bench
        if last is not None:
            last.note_busy()
        wanted = setup.version, setup.unified_options
        if last is None or (last.setup.version, last.setup.unified_options) != wanted or not last.unified.runs:
            self.stop()
            return None
        servers.stop(*last.pair)
        return last.unified

    def _dual(self, setup: Setup, names: str = "ab") -> list[Server]:
        config = self._folder / f"{setup}.yaml"
        config.write_text(yaml.safe_dump({**DUAL, **setup.config}))
        options = [*servers.DUAL, *setup.options]
        more = {"config": config, "tokens": setup.tokens}
        logs = {name: {DECISION_LOG_VARIABLE: str(self._folder / f"{setup}-{name}.jsonl")} for name in names}
        return [self._server(setup, name, options, env={**setup.env, **logs[name]}, **more) for name in names]

    def _stock(self, setup: Setup) -> list[Server]:
        return [self._server(setup, role, [*servers.STOCK, role, *setup.options]) for role in ("prefill", "decode")]

    def _server(self, setup: Setup, name: str, options: list[str] | None = None, **more: Any) -> Server:
        log = self._folder / f"{next(self._numbers)}-{setup}-{name}.log"
        return Server(tree_of(setup.version), self._model, log, options or (), **more)


def tree_of(version: str) -> Path:
    """The folder with this version of SGLang; without it the test is skipped."""
    found = {servers.version_of(tree): tree for tree in servers.trees()}
    return found.get(version) or pytest.skip(f"no SGLang {version} here; run make test-sglang")
