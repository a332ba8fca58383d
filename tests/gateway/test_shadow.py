"""Shadow mode: the router decides and is heard, and requests go to the least loaded workers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pdplugins.errors import ConfigError
from pdplugins.runtime.decision_reader import read
from pdplugins.types import Role, RoleMove
from tests.gateway.fake import answer_of, settled
from tests.gateway.rig import PATIENT, PROMPT, Fixed, ask, config, patient, stand

SHADOW = PATIENT.model_copy(update={"shadow": True})


class Stubborn(Fixed):
    """Puts all of a request on the last worker, and wants every worker to prefill."""

    taken = 0

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = -1

    def take_role_moves(self) -> tuple[RoleMove, ...]:
        self.taken += 1
        return (RoleMove(self.requests[-1].id if self.requests else "", Role.PREFILL, "why not"),)


class Raising(Fixed):
    def on_arrival(self, *args: Any) -> Any:
        raise RuntimeError("no idea")


class Late(Fixed):
    """Names who decodes only when prefill is done."""

    asked: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.second, self.later = None, 0

    def on_prefill_done(self, request: Any, *rest: Any) -> Any:
        self.asked.append(request.id)
        return super().on_prefill_done(request, *rest)


def test_a_router_in_shadow_decides_and_is_told_and_nobody_follows_it() -> None:
    async def run() -> None:
        async with stand("dual", "dual", "dual", cfg=config("round-robin"), settings=SHADOW) as it:
            router = it.route(Stubborn())
            for _ in range(4):
                status, said = await it.post("/generate", ask())
                assert (status, said["output_ids"]) == (200, answer_of(PROMPT, 9))
            assert len(router.requests) == 4
            assert [ending for _, ending, _ in router.endings] == ["finished"] * 4
            assert it.workers[2].served["local"] == 0, "the router's own choice"
            roles = [backend.view.role for backend in it.gateway.backends.all]
            assert roles == ["prefill", "decode", "decode"]
            assert router.taken >= 4
            shadow = it.gateway.metrics.registry.get_sample_value
            assert shadow("pdplugins_gateway_shadow_total", {"placement": "other"}) == 4

    asyncio.run(run())


def test_a_router_that_raises_in_shadow_harms_nothing_and_is_counted() -> None:
    async def run() -> None:
        async with stand("dual", "dual", cfg=config("round-robin"), settings=SHADOW) as it:
            it.route(Raising())
            assert (await it.post("/generate", ask()))[0] == 200
            assert it.faults["router_policy_error"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_router_in_shadow_is_asked_again_once_prefill_is_done(stream: bool) -> None:
    async def run() -> None:
        async with stand("dual", "dual", cfg=config("round-robin"), settings=SHADOW) as it:
            router = it.route(Late())
            router.asked.clear()
            await (it.stream("/generate", ask()) if stream else it.post("/generate", ask()))
            assert await settled(lambda: router.endings)
            assert router.asked == [router.requests[0].id]

    asyncio.run(run())


def test_the_log_holds_both_placements(tmp_path: Path) -> None:
    cfg = config("round-robin", decision_log={"sample": 1}, flow="fcfs")

    async def run() -> None:
        async with stand("dual", "dual", cfg=cfg, settings=SHADOW, decision_log=tmp_path / "log") as it:
            it.route(Stubborn())
            assert it.gateway.policies.flow is None
            await it.post("/generate", ask(rid="one"))

    asyncio.run(run())
    (run_,) = read(tmp_path / "log")
    (entry,) = run_.entries
    assert run_.header["shadow"] is True
    followed, answer = entry.seen["followed"], entry.answer
    assert followed["first"] != followed["second"]
    assert answer["first"] == answer["second"] == followed["second"]
    assert {worker["id"] for worker in entry.seen["workers"]} == {followed["first"], followed["second"]}


def test_shadow_without_a_router_is_refused() -> None:
    async def run() -> None:
        cfg = config().model_copy(update={"router": None})
        with pytest.raises(ConfigError, match="no router to try"):
            async with stand("dual", cfg=cfg, settings=patient(shadow=True)):
                pass

    asyncio.run(run())


def test_a_log_without_shadow_says_nothing_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with stand("dual", "dual", decision_log=tmp_path / "log") as it:
            await it.post("/generate", ask())

    asyncio.run(run())
    assert "shadow" not in json.loads((tmp_path / "log").read_text().splitlines()[0])
