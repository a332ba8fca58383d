"""A real client sees no difference: OpenAI's and LangChain's through the gateway, and straight to a unified server.

Every call goes through every router, and through every primitive. Where an answer differs, the control is the same call
to the unified server several times more, beside others: what differs there too is SGLang's own doing. `docs/gateway.md`
shows what became of each call; with `--write-pages` these tests write that table.
"""

from __future__ import annotations

import asyncio
import random
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
from tests.hosts.sglang.setups import Bench, Setup

if not servers.trees():
    pytest.skip("the clients are in the environment of make test-sglang", allow_module_level=True)

from tests.hosts.sglang.gateway.client_calls import (
    CALLS,
    DEADLY,
    HANGS,
    NO_ANSWER,
    NOT_SERVED,
    Call,
    Endpoint,
    Outcome,
    Place,
    is_error_object,
    outcome_of,
)

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1200)]

SETTINGS = GatewayConfig(
    **{"timeout_s": 80, "first_token_s": 60, "silence_s": 60, "connect_s": 30, "head_s": 60, "poll_timeout_s": 30},
    **{"rest_s": 1, "poll_s": 0.5, "drain_s": 5},
)
ALIKE: dict[str, Any] = {"options": setups.NO_OVERLAP, "alike": True}
"""With overlap scheduling SGLang applies penalties a step late, as other requests allow: not even it repeats itself."""
DUAL = [Setup(version, "clients", env=setups.TIMEOUTS, **ALIKE) for version in setups.VERSIONS]
STOCK = [Setup(version, "clients-stock", stock=True, **ALIKE) for version in setups.VERSIONS]
AT_ONCE = 4
"""Calls that are under way at a time, over all lanes."""
REPEATS = 3
"""Of each call to the unified server where an answer differs."""
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
NOT_MADE = "not made: it ends the server"
REPEATED = "same, as far as the unified server repeats itself"
GOOD = (REPEATED, COUNTED, ALONE, SAME)
"""What one call may come to in different lanes; a router that places on one server what has to be there is no other."""
SPLIT_CALLS = 5
"""Each primitive serves more calls than these."""


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
class Control:
    """What a unified server answered, and what it answered when it was asked again."""

    want: Outcome
    again: tuple[Outcome, ...] = ()

    def cell(self, name: str, lane: str, got: Outcome, *, alone: bool) -> str:
        """What a call came to in a lane. :param alone: one server had to do all of it."""
        if got.broken:
            return f"{lane} {'hangs' if got.status == HANGS else f'differs: {got.said}'}"
        wrong = got.differences(self.want)
        if not wrong and name not in NOT_SERVED:
            return self._same(alone=alone)
        if wrong and all(place[-1:] == (REASONING,) for place in wrong):
            return COUNTED
        if got.status is not None and 400 <= got.status < 500 and is_error_object(got.said):
            return f"refused, {got.status}"
        if wrong and wrong <= frozenset().union(*(outcome.differences(self.want) for outcome in self.again)):
            return REPEATED
        return f"{lane} differs: " + ", ".join(_shown(place, got, self.want) for place in sorted(wrong, key=str)[:5])

    def _same(self, *, alone: bool) -> str:
        if self.want.status is None:
            return ALONE if alone else SAME
        return f"the same refusal, {self.want.status}" if self.want.status else "the same refusal"


def _shown(place: Place, got: Outcome, want: Outcome) -> str:
    """One difference, in words."""
    said: list[Any] = []
    for outcome in (got, want):
        value: Any = outcome.said
        for name in place if got.status == want.status else ():
            value = value[name] if not isinstance(value, dict) or name in value else "nothing"
        said.append(value)
    return f"{place} is {said[0]!r:.500} and not {said[1]!r:.500}"


@dataclass
class Column:
    """What became of the calls in a lane."""

    outcomes: dict[str, tuple[Outcome, bool]]
    """Of each call, and whether one server had to do all of it."""
    faults: Mapping[str, int]
    """What must not happen."""
    primitives: int
    """Requests that the primitive of this name served."""


@asynccontextmanager
async def gateway_of(bench: Bench, name: str) -> AsyncIterator[Gateway]:
    router = {"name": name, **ROUTERS[name]} if name in ROUTERS else "least-loaded"
    cfg = config(router, dual=not bench.setup.stock).model_copy(update={"gateway": SETTINGS})
    gateway = Gateway(cfg, [WorkerOption.parse(server.url) for server in bench.pair])
    if name in PRIMITIVES:
        gateway.routing.use(Always(name))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def down(bench: Bench, lane: str, calls: Mapping[str, Call], gate: asyncio.Semaphore) -> Column:
    """Make all calls through a gateway of its own, one after the other."""
    outcomes = {}
    async with gateway_of(bench, lane) as gateway, Endpoint(gateway.url) as endpoint:
        faults = gateway.metrics.faults
        for name, call in calls.items():
            alone = faults["refused_whole"]
            async with gate:
                outcomes[name] = await outcome_of(call, endpoint), faults["refused_whole"] > alone
        bad = {kind: faults[kind] for kind in ("gateway_error", "worker_failed", "worker_full") if faults[kind]}
        return Column(outcomes, bad, int(gateway.metrics.primitives.count(lane)))


async def cells_of(bench: Bench, lanes: list[str]) -> dict[str, str]:
    """Make all calls in all lanes, the lanes side by side. Return one cell for each call."""
    calls = {name: call for name, call in CALLS.items() if name not in DEADLY.get(bench.setup.version, ())}
    gate = asyncio.Semaphore(AT_ONCE)
    async with Endpoint(bench.unified.url) as unified:

        async def one(name: str) -> Outcome:
            async with gate:
                outcome = await outcome_of(calls[name], unified)
                if outcome.status == NO_ANSWER:  # SGLang closes a connection after a call that it does not serve
                    outcome = await outcome_of(calls[name], unified)
                return outcome

        controls = {name: Control(await one(name)) for name in calls}
        assert not {name: control.want for name, control in controls.items() if control.want.broken}
        columns = await asyncio.gather(*(down(bench, lane, calls, gate) for lane in lanes))
        cells = _cells(controls, lanes, columns)
        if _wrong(cells):
            mixed = random.Random(0).sample([*calls] * REPEATS, REPEATS * len(calls))
            again = list(zip(mixed, await asyncio.gather(*map(one, mixed)), strict=True))
            for name, control in controls.items():
                controls[name] = Control(control.want, tuple(outcome for of, outcome in again if of == name))
            cells = _cells(controls, lanes, columns)
    for lane, column in zip(lanes, columns, strict=True):
        assert not column.faults, (lane, column.faults, _wrong(cells))
        assert lane not in PRIMITIVES or column.primitives > SPLIT_CALLS, lane
    assert _wrong(cells) == {}
    return {name: _one(cells.get(name, {NOT_MADE})) for name in CALLS}


Cells = dict[str, set[str]]
"""Of each call what it came to, in any lane."""


def _cells(controls: Mapping[str, Control], lanes: list[str], columns: list[Column]) -> Cells:
    cells: Cells = {name: set() for name in controls}
    for lane, column in zip(lanes, columns, strict=True):
        for name, (got, alone) in column.outcomes.items():
            cells[name].add(controls[name].cell(name, lane, got, alone=alone))
    return cells


def _wrong(cells: Cells) -> dict[str, list[str]]:
    """Calls that differ or hang, and those that lanes answer in different ways."""
    return {
        name: sorted(found)
        for name, found in cells.items()
        if not found <= set(GOOD) and (len(found) > 1 or any("differs" in cell or "hangs" in cell for cell in found))
    }


def _one(cells: set[str]) -> str:
    """What all lanes come to."""
    return next((cell for cell in GOOD if cell in cells), next(iter(cells)))


class Table:
    """The table of the page: a row for each call, a column for each kind of servers."""

    def __init__(self, text: str) -> None:
        self._before, rest = text.split(BEGIN)
        table, self._after = rest.split(END)
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        self._columns = lines[0][1:] if lines else []
        self._rows = {cells[0]: dict(zip(self._columns, cells[1:], strict=True)) for cells in lines[2:]}

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
    """Compare a column with the page, or write it there.

    Where the unified server does not repeat itself, the page may say so or not: that is chance.
    """
    if write:
        PAGE.write_text(Table(PAGE.read_text()).write(name, cells))
    shown = Table(PAGE.read_text()).column(name)
    assert shown.keys() == cells.keys(), "the page has other calls: write it again"
    assert not {
        call: cell for call, cell in shown.items() if cell != cells[call] and REPEATED not in (cell, cells[call])
    }


@setups.on(*DUAL)
def test_clients_see_no_difference_over_dual_role_servers(bench: Bench, request: pytest.FixtureRequest) -> None:
    cells = asyncio.run(cells_of(bench, [*ROUTERS, *PRIMITIVES]))
    check(f"dual-role {bench.setup.version}", cells, write=request.config.getoption("--write-pages"))


@setups.on(*STOCK)
def test_clients_see_no_difference_over_stock_servers(bench: Bench, request: pytest.FixtureRequest) -> None:
    cells = asyncio.run(cells_of(bench, ["arrow", "dynaserve", "least-loaded"]))
    check(f"stock {bench.setup.version}", cells, write=request.config.getoption("--write-pages"))
