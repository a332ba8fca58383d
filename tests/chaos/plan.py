"""How long chaos lasts, which faults it mixes, and what it counts. Set from the environment:

CHAOS_S     seconds of each test (60)
CHAOS_SEED  random seed of the mix (1)
CHAOS_ONLY  these faults alone, with semicolons between them
CHAOS_OUT   file for what was counted, as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import Any, Generic, TypeVar

StageT = TypeVar("StageT")

SECONDS = float(os.environ.get("CHAOS_S", "60"))
TIMEOUT_S = 3 * SECONDS + 600
"""After which pytest ends a test: it takes the last fault, and the end, into account."""
DEADLINE_S = 60.0
"""Within which everything is answered or refused. The deadlines of what runs are far below; the machine may be busy."""
MOST_TOGETHER = 3
"""Faults that happen at once."""


@dataclass
class Tally:
    """What came of the requests of one fault."""

    times: int = 0
    came: Counter[str] = field(default_factory=Counter)
    """answered, refused, closed (by what was asked) or left (by the client)."""
    longest_s: float = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Time one request."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def row(self) -> dict[str, Any]:
        ends = {name: self.came[name] for name in ("answered", "refused", "closed", "left")}
        return {"times": self.times, "requests": sum(self.came.values()), **ends, "longest_s": round(self.longest_s, 2)}


class Others(IntEnum):
    """What may come of the requests of others while a fault is there, within their deadline in any case."""

    RIGHT = 0
    """All are answered, and rightly."""
    REFUSED = 1
    """Some are refused, with the advice to come back."""
    CUT = 2
    """Some streams end with an error event: those that no other worker can go on with."""
    FAILED = 3
    """Some end with an error."""
    ODD = 4
    """They get what the worker says instead of an answer."""
    HUNG = 5
    """They have no end. Nothing allows that."""


@dataclass(frozen=True)
class Fault(Generic[StageT]):
    """One thing that goes wrong, and what it may do to others."""

    name: str
    of: str
    """Who does it: a client, a worker, or the operator."""
    act: Callable[[StageT, Random, Tally], Awaitable[None]]
    others: Others = Others.RIGHT
    """What may come of the requests of others meanwhile."""


class ChaosError(AssertionError):
    """An invariant that does not hold, and the command that shows it again."""


@dataclass(frozen=True)
class Plan:
    """One run: it takes the faults in rounds, each in another order, one to three at once."""

    seconds: float
    seed: int
    only: tuple[str, ...]
    out: Path | None

    @classmethod
    def from_environment(cls) -> Plan:
        only = tuple(filter(None, os.environ.get("CHAOS_ONLY", "").split(";")))
        out = os.environ.get("CHAOS_OUT")
        return cls(SECONDS, int(os.environ.get("CHAOS_SEED", "1")), only, Path(out) if out else None)

    def picked(self, faults: Sequence[Fault[StageT]]) -> list[Fault[StageT]]:
        return [fault for fault in faults if not self.only or fault.name in self.only]

    def batches(self, faults: Sequence[Fault[StageT]], dice: Random, together: int) -> Iterator[list[Fault[StageT]]]:
        """Yield one round: every fault once, at most one of workers or operator at a time."""
        order = list(faults)
        dice.shuffle(order)
        while order:
            batch = [order.pop()]
            for fault in order[: dice.randrange(together)]:
                if fault.of == "client" or all(other.of == "client" for other in batch):
                    order.remove(fault)
                    batch.append(fault)
            yield batch

    def again(self, test: str, batch: Sequence[Fault[StageT]]) -> str:
        """Return the command that brings the same faults about again."""
        names = ";".join(fault.name for fault in batch)
        return f"CHAOS_SEED={self.seed} CHAOS_S=20 CHAOS_ONLY='{names}' python -m pytest '{test}'"

    def write(self, name: str, counted: dict[str, Any]) -> None:
        """Add what one test counted to the file, where there is one."""
        if self.out is not None:
            before = json.loads(self.out.read_text()) if self.out.exists() else {}
            self.out.write_text(json.dumps(before | {name: counted}, indent=1) + "\n")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what went wrong, of an error that may be several."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from causes(part)
    else:
        yield error


async def drive(
    plan: Plan,
    test: str,
    faults: Sequence[Fault[StageT]],
    stage: StageT,
    check: Callable[[Sequence[Fault[StageT]]], Awaitable[None]],
    *,
    after_round: Callable[[], Awaitable[None]],
    last_words: Callable[[], str],
    together: int = MOST_TOGETHER,
) -> dict[str, Tally]:
    """Bring the faults about until the time is over, and check what must hold after each batch of them.

    A round is not cut, so each fault comes once at least. Raises ChaosError with seed, faults, what was logged last
    (`last_words`) and the command.
    """
    dice = Random(plan.seed)
    tallies = {fault.name: Tally() for fault in plan.picked(faults)}
    ends_s = time.monotonic() + plan.seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < ends_s:
        rounds += 1
        for batch in plan.batches(plan.picked(faults), dice, together):
            if rounds > 1 and time.monotonic() > ends_s:
                break
            names = ", ".join(fault.name for fault in batch)
            try:
                async with asyncio.timeout(4 * DEADLINE_S), asyncio.TaskGroup() as group:
                    for fault in batch:
                        tallies[fault.name].times += 1
                        group.create_task(fault.act(stage, Random(dice.random()), tallies[fault.name]))
                await check(batch)
            except Exception as error:
                why = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes(error))
                raise ChaosError(
                    f"seed {plan.seed}, round {rounds}, faults: {names}: {why}\n"
                    f"last said:\n{last_words()}\nagain: {plan.again(test, batch)}"
                ) from error
        await after_round()
    return tallies
