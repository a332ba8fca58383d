"""The router of `dynamo serve` is started again, also where the machine refuses a process for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdplugins.hosts.dynamo.local import routing
from pdplugins.hosts.dynamo.local.routing import MOST_FAILURES, RouterProcess

DEAD: Any = SimpleNamespace(fate="ended", last_words=lambda: "", name="router")


def router(folder: Path, fails: list[str], serving: dict[str, str] | None = None) -> RouterProcess:
    engine: Any = SimpleNamespace(environment=lambda _: {})
    registrations: Any = SimpleNamespace(serving=lambda: dict(serving or {}))
    return RouterProcess(SimpleNamespace(), engine, registrations, folder, fails.append)  # type: ignore[arg-type]


@pytest.mark.parametrize("refusals", [1, MOST_FAILURES])
def test_a_machine_that_refuses_a_process_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    fails: list[str] = []
    asked = 0

    def start(*_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked <= refusals:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return DEAD

    monkeypatch.setattr(routing.Process, "start", start)
    monkeypatch.setattr(routing, "PAUSE_S", 0.01)
    monkeypatch.setattr(routing, "LEAST_S", 0.0)

    async def story() -> None:
        subject = router(tmp_path, fails)
        subject._ended(DEAD)
        for _ in range(200):
            await asyncio.sleep(0.01)
            if fails or asked > refusals:
                break
        subject.close()

    asyncio.run(story())
    if refusals < MOST_FAILURES:
        assert (asked, fails) == (refusals + 1, [])
    else:
        assert fails == ["the router cannot be started: [Errno 11] Resource temporarily unavailable"]


def test_one_that_served_and_says_so_no_longer_is_killed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts has not said so yet. Its end starts another one."""
    now_s, killed, serving = [0.0], [], {"decode-1": "id"}
    process = SimpleNamespace(kill=lambda: killed.append(now_s[0]))
    monkeypatch.setattr(routing.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(routing.Process, "start", lambda *_, **__: process)
    subject = router(tmp_path, [], serving)

    def look_for(seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            now_s[0] += 0.5
            subject.look()

    subject._run()
    look_for(60)
    serving["router"] = "id"
    look_for(1)
    del serving["router"]
    look_for(routing.SILENT_S - 1)
    serving["router"] = "id"
    look_for(1)
    assert killed == []
    del serving["router"]
    look_for(20)
    assert len(killed) == 1
    subject._run()
    look_for(60)
    assert len(killed) == 1
