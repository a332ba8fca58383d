"""What the daemon sees of the host that it stands beside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdplugins.contracts.workers import Role
from pdplugins.hosts.power import beside


def worker(name: str, role: str, queued: int, running: int) -> dict[str, Any]:
    """A line of the gateway's page of workers; prompts of 100 tokens."""
    load = {"queued_requests": queued, "queued_tokens": 100 * queued, "running_requests": running}
    load |= {"running_tokens": 100 * running, "recent_ttft_s": 0.5, "recent_tbt_s": None}
    return {"id": name, "role": role, "alive": True, "load": load}


def test_the_prompt_that_a_worker_computes_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway counts it as queued; a policy that asks how many wait must see the same as in the simulator."""
    workers = [worker("p0", "prefill", 3, 0), worker("p1", "prefill", 0, 0), worker("d", "decode", 0, 4)]
    pages = {"/workers": json.dumps(workers), "/metrics": ""}
    monkeypatch.setattr(beside, "ask", lambda url, *_: pages[url.removeprefix("http://gateway")])
    seen = beside.Gateway("http://gateway").look()
    busy, idle = seen.pool(Role.PREFILL, 2).loads
    assert (busy.queued_requests, busy.queued_tokens, busy.running_requests, busy.running_tokens) == (2, 200, 1, 100)
    assert (idle.queued_requests, idle.running_requests) == (0, 0)
    (decode,) = seen.pool(Role.DECODE, 1).loads
    assert (decode.running_requests, decode.running_tokens) == (4, 400)
