"""Stand-ins for what Dynamo gives the router: transports of workers, contexts of legs, and discovery."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from pdplugins.types import Placement, Role, RoleMove

TOKEN = {"token_ids": [7]}
LAST = {"token_ids": [], "finish_reason": "length"}
PREFILLED = {"token_ids": [7], "disaggregated_params": "there"}


class Leg:
    """Dynamo's context of one request, or of one leg of it."""

    def __init__(self, name: str = "r", **metadata: str) -> None:
        self.name = name
        self.metadata = metadata
        self.stopped = False
        self.legs: list[Leg] = []
        self._left: asyncio.Future[bool] | None = None

    def id(self) -> str:
        return self.name

    def detached(self, name: str) -> Leg:
        self.legs.append(Leg(name))
        return self.legs[-1]

    def stop_generating(self) -> None:
        self.stopped = True

    def async_killed_or_stopped(self) -> asyncio.Future[bool]:
        self._left = asyncio.get_running_loop().create_future()
        return self._left

    def leave(self) -> None:
        """What Dynamo does when the client goes away."""
        assert self._left is not None
        self._left.set_result(True)


class Transport:
    """A client of Dynamo whose workers give these chunks; an exception they raise, and ... is silence."""

    def __init__(self, *chunks: Any, connects: Exception | None = None) -> None:
        self.chunks, self.connects = chunks, connects
        self.sent: list[dict[str, Any]] = []
        self.to: list[int] = []

    async def direct(self, body: Any, instance: int, *, annotated: bool, context: Any) -> AsyncIterator[Any]:
        if self.connects is not None:
            raise self.connects
        self.sent.append(body)
        self.to.append(instance)
        return self._answer()

    async def _answer(self) -> AsyncIterator[Any]:
        for chunk in self.chunks:
            if chunk is ...:
                await asyncio.Event().wait()
            if isinstance(chunk, Exception):
                raise chunk
            await asyncio.sleep(0)
            yield chunk


class Registry(Transport):
    """One endpoint: who is registered, what they say of themselves, and how they answer."""

    def __init__(self, *chunks: Any) -> None:
        super().__init__(*chunks)
        self.instances: list[int] = []
        self.cards: dict[str, str] = {}

    def instance_ids(self) -> list[int]:
        return self.instances

    def get_model_cards(self) -> dict[str, str]:
        return self.cards

    def get_recent_stats(self) -> dict[tuple[str, int], bytes]:
        return {}

    def shutdown(self) -> None:
        """Nothing to end."""

    def joins(self, instance: int, name: str, **card: Any) -> None:
        self.instances.append(instance)
        runtime = {"total_kv_blocks": 100, "stable_routing_id": name}
        self.cards[str(instance)] = json.dumps({"kv_cache_block_size": 64, "runtime_config": runtime} | card)

    def leaves(self, instance: int) -> None:
        self.instances.remove(instance)


class Flipping:
    """Moves a worker between the roles once in `every` requests, and looks at its role at the next one."""

    def __init__(self, every: int = 7) -> None:
        self._every = every
        self.asked = self.turn = self.flips = self.late = 0
        self._moves: tuple[RoleMove, ...] = ()
        self._expected: dict[str, Role] = {}

    def on_arrival(self, request: Any, workers: Any, now_s: float) -> Placement:
        self.late += sum(worker.role is not self._expected.get(worker.id, worker.role) for worker in workers)
        self.asked += 1
        if self.asked % self._every == 0:
            role = Role.PREFILL if self.asked % (2 * self._every) else Role.DECODE
            others = [worker for worker in workers if worker.role is not role]
            if len(others) > 1:
                self._moves = (RoleMove(others[self.asked // (2 * self._every) % len(others)].id, role),)
        return Placement(self._next(workers, Role.PREFILL), None, request.prompt_tokens)

    def on_prefill_done(self, request: Any, placement: Placement, workers: Any, now_s: float) -> Placement:
        return Placement(placement.first, self._next(workers, Role.DECODE), placement.split)

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        moves, self._moves = self._moves, ()
        self._expected.update((move.worker, move.role) for move in moves)
        self.flips += len(moves)
        return moves

    def _next(self, workers: Any, role: Role) -> str:
        names = [worker.id for worker in workers if worker.role is role]
        self.turn += 1
        return str(names[self.turn % len(names)])
