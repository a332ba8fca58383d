"""What must hold on several hosts while links are cut, and what did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

LEASE_S = 20
"""How long etcd keeps what a process has registered and no longer renews (``ETCD_LEASE_TTL``)."""
SLOW_S = 3.0
"""A request that takes longer counts as one that the cut has hit."""
HIT_S = 10.0
"""What is sent later than so long after a cut has to be served where it still can be."""
BRIEF_S = LEASE_S / 4
"""A brief cut: TCP repeats a renewal that was lost after waits that double, so it comes within the lease."""
STALL_S = 1.0
"""By so much a brief cut may last longer."""
BACK_S = 3.0
"""What is sent so long after everything is back has to be served."""
PLANLESS_S = 10.0
"""For so long the planner may be silent. It plans every two seconds, and waits two for a frontend that cannot reply."""


def told(rows: list[dict[str, Any]], from_s: float) -> dict[str, Any]:
    """Return what became of requests, and when the last one was hit, in seconds after `from_s`."""
    hit = [row for row in rows if not row["good"] or row["took_s"] > SLOW_S]
    lost = [row for row in rows if not row["good"]]
    return {
        "served": len(rows) - len(lost),
        "slow": len(hit) - len(lost),
        "lost": len(lost),
        "last_hit_s": round(max((row["sent_s"] for row in hit), default=from_s) - from_s, 1),
        "last_lost_s": round(max((row["sent_s"] for row in lost), default=from_s) - from_s, 1),
        "longest_s": round(max((row["took_s"] for row in rows), default=0.0), 1),
        "said": sorted({row["said"] for row in lost})[:3],
    }


def longest_gap_s(times_s: Iterable[float], since_s: float, until_s: float) -> float:
    """Return the longest time between `since_s` and `until_s` in which nothing came."""
    inside = [since_s, *sorted(one for one in times_s if since_s < one < until_s), until_s]
    return max(later - sooner for sooner, later in pairwise(inside))


def complaints(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what did not hold."""
    most = facts["gpu_budget"] // facts["gpus_of_one"]
    if facts["most_gpus"] > facts["gpu_budget"] or any(sum(one[1:]) > most for one in facts["decisions"]):
        yield f"GPU budget of {facts['gpu_budget']}: {facts['most_gpus']} held, {facts['decisions']} decided"
    numbers = [one[0] for one in facts["decisions"]]
    if numbers != sorted(set(numbers)):
        yield f"decided twice: {facts['decisions']}"
    for cut in facts["cuts"]:
        yield from (f"cut of {cut['cut']}: {why}" for why in _wrong(cut))


def _wrong(cut: dict[str, Any]) -> Iterator[str]:
    """Yield what did not hold at one cut."""
    if cut["registered"] != cut["wanted"] or cut["registered_twice"]:
        yield f"registered {cut['registered']}, wanted {cut['wanted']}, twice {cut['registered_twice']}"
    if cut["planless_s"] > PLANLESS_S or "planner" in cut["started_again"]:
        yield f"the planner did not go on: {cut['planless_s']} s without a plan"
    brief = cut["lasted_s"] <= BRIEF_S + STALL_S
    if brief and cut["started_again"]:
        yield f"a cut much shorter than the lease ended {cut['started_again']}"
    for host, client in cut["clients"].items():
        during, after = client["cut"], client["healed"]
        if cut["cut"] == "worker" and during["lost"]:
            yield f"lost {during['lost']} requests of the client on {host}: {during['said']}"
        if brief and (lost := during["lost"] + after["lost"]):
            yield f"lost {lost} requests of the client on {host}: {during['said'] + after['said']}"
        if during["last_lost_s"] > HIT_S and host != cut["host"]:
            yield f"lost requests {during['last_lost_s']} s later on {host}: {during['said']}"
        if not during["served"]:
            yield f"served nothing on {host}"
        if after["last_lost_s"] > cut["back_s"] + BACK_S:
            yield f"lost requests {after['last_lost_s']} s after the healing on {host}: {after['said']}"
