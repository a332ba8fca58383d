"""A real client sees no difference: OpenAI's and LangChain's through the gateway, and straight to a unified server.

Every call goes through every router, and through every primitive. `docs/gateway.md` shows what became of each; with
`--write-pages` these tests write that table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rig import servers
from pdplugins.gateway.app import Gateway
from pdplugins.gateway.backends import WorkerOption
from pdplugins.limits import GatewayConfig
from pdplugins.types import Placement
from tests.gateway.rig import config
from tests.hosts.sglang import setups
from tests.hosts.sglang.setups import Bench

if not servers.trees():
    pytest.skip("the clients are in the environment of make test-sglang", allow_module_level=True)

from tests.hosts.sglang.gateway.client_calls import (
    CALLS,
    NOT_SERVED,
    Endpoint,
    Outcome,
    is_error_object,
    outcome_of,
)

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

SETTINGS = GatewayConfig(
    **{"timeout_s": 80, "first_token_s": 60, "silence_s": 60, "connect_s": 30, "head_s": 60, "poll_timeout_s": 30},
    **{"rest_s": 1, "poll_s": 0.5, "drain_s": 5},
)
AT_ONCE = 4
"""Calls that are under way at a time, over all lanes."""
ROUTERS: Mapping[str, Mapping[str, Any]] = {
    "ampd": {},
    "arrow": {},
    "dopd": {"local_tokens": 60},
    "dynaserve": {"pairs": "any", "split": "balanced", "underused": 0, "least_tokens": 1, "margin_tokens": 0},
    "cache-aware": {},
    "least-loaded": {},
    "power-of-two": {},
    "random": {},
    "round-robin": {},
}
PAGE = Path(__file__).parents[4] / "docs/gateway.md"
BEGIN, END = (
    "<!-- clients: begin, written by tests/hosts/sglang/gateway/test_clients.py -->\n",
    "<!-- clients: end -->\n",
)
SAME, ALONE = "same", "same, on one server"
REASONING = "reasoning_tokens"
COUNTED = f"same but `{REASONING}`"
"""A decode server of SGLang 0.5.16 does not count the token that the prefill server has made."""


class Always:
    """A router that always places requests in one way: the primitive of this name, where it can be."""

    def __init__(self, primitive: str) -> None:
        self._primitive = primitive

    def on_arrival(self, request: Any, workers: Any, now_s: float) -> Placement:
        tokens = request.prompt_tokens
        split = {"push": max(tokens // 2, 1), "head": tokens + 3}.get(self._primitive, tokens)
        return Placement(workers[0].id, None if self._primitive == "warm" else workers[1].id, split)

    def on_prefill_done(self, request: Any, placement: Placement, workers: Any, now_s: float) -> Placement:
        return Placement(placement.first, workers[1].id, placement.split)


PRIMITIVES = ("pair", "push", "head", "warm")


@dataclass(frozen=True)
class Lane:
    """One way to the servers: a gateway with its router."""

    name: str
    gateway: Gateway

    async def cell(self, name: str, want: Outcome) -> str:
        """What became of one call through this gateway. Calls of a lane are made one after the other."""
        faults = self.gateway.metrics.faults
        alone = faults["refused_whole"]
        try:
            got = await outcome_of(CALLS[name], Endpoint(self.gateway.url))
        except TimeoutError:
            return f"{self.name} hangs"
        if got.equals(want) and name not in NOT_SERVED:
            return ALONE if faults["refused_whole"] > alone else SAME
        if got.without(REASONING).equals(want.without(REASONING)):
            return COUNTED
        if got.status is not None and 400 <= got.status < 500 and is_error_object(got.said):
            return f"refused, {got.status}"
        return f"{self.name} differs: {got} is not {want}"


@asynccontextmanager
async def lane(bench: Bench, name: str) -> AsyncIterator[Lane]:
    router = {"name": name, **ROUTERS[name]} if name in ROUTERS else "least-loaded"
    cfg = config(router, dual=not bench.setup.stock).model_copy(update={"gateway": SETTINGS})
    gateway = Gateway(cfg, [WorkerOption.parse(server.url) for server in bench.pair])
    if name in PRIMITIVES:
        gateway.routing.use(Always(name))
    await gateway.start()
    try:
        yield Lane(name, gateway)
        assert not gateway.metrics.faults["gateway_error"]
        assert not gateway.metrics.faults["worker_failed"]
        if name in PRIMITIVES:
            assert gateway.metrics.primitives.labels(name)._value.get() > 10
    finally:
        await gateway.stop()


async def cells_of(bench: Bench, lanes: list[str]) -> dict[str, str]:
    """Make all calls in all lanes, the lanes side by side. Return one cell for each call."""
    unified = Endpoint(bench.unified.url)
    want = {name: await outcome_of(call, unified) for name, call in CALLS.items()}

    gate = asyncio.Semaphore(AT_ONCE)

    async def down(name: str) -> dict[str, str]:
        cells = {}
        async with lane(bench, name) as it:
            for call in CALLS:
                async with gate:
                    cells[call] = await it.cell(call, want[call])
        return cells

    columns = await asyncio.gather(*map(down, lanes))
    return {name: _one({column[name] for column in columns}) for name in CALLS}


def _one(cells: set[str]) -> str:
    """What all lanes come to; a router that itself places on one server what has to be there makes no difference."""
    for cell in (COUNTED, ALONE, SAME):
        if cell in cells and cells <= {COUNTED, ALONE, SAME}:
            return cell
    return "; ".join(sorted(cells - {SAME, ALONE}))


class Table:
    """The table of the page: a row for each call, a column for each kind of servers."""

    def __init__(self, text: str) -> None:
        self._before, rest = text.split(BEGIN)
        table, self._after = rest.split(END)
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        self._columns = lines[0][1:] if lines else []
        self._rows = {cells[0]: dict(zip(self._columns, cells[1:], strict=True)) for cells in lines[2:]}

    def has(self, name: str) -> bool:
        """Whether the page has this column."""
        return name in self._columns

    def column(self, name: str) -> dict[str, str]:
        return {call: cells.get(name, "") for call, cells in self._rows.items()}

    def write(self, name: str, cells: Mapping[str, str]) -> str:
        """The page with this column."""
        columns = sorted({*self._columns, name})
        lines = [["call", *columns], ["---"] * (len(columns) + 1)]
        for call in CALLS:
            row = self._rows.get(call, {}) | {name: cells[call]}
            lines.append([call, *(row.get(column, "") for column in columns)])
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return self._before + BEGIN + table + END + self._after


def check(name: str, cells: Mapping[str, str], *, write: bool) -> None:
    """Compare a column with the page, or write it there. What differs or hangs is never written."""
    wrong = [f"{call}: {cell}" for call, cell in cells.items() if "differs" in cell or "hangs" in cell or ";" in cell]
    assert wrong == []
    if write:
        PAGE.write_text(Table(PAGE.read_text()).write(name, cells))
    table = Table(PAGE.read_text())
    assert not table.has(name) or table.column(name) == cells


@setups.on(*setups.ROOMY)
def test_clients_see_no_difference_over_dual_role_servers(bench: Bench, request: pytest.FixtureRequest) -> None:
    cells = asyncio.run(cells_of(bench, [*ROUTERS, *PRIMITIVES]))
    check(f"dual-role {bench.setup.version}", cells, write=request.config.getoption("--write-pages"))


@setups.on(*setups.STOCK)
def test_clients_see_no_difference_over_stock_servers(bench: Bench, request: pytest.FixtureRequest) -> None:
    cells = asyncio.run(cells_of(bench, ["arrow", "dynaserve", "least-loaded"]))
    check(f"stock {bench.setup.version}", cells, write=request.config.getoption("--write-pages"))
