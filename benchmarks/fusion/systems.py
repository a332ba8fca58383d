"""What fusion is held against: the five plugins and the stock configurations, each with the settings that are tried.

All have the same GPUs. Where the KV cache moves between workers, it moves chunk by chunk while the next one computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cells import Cell, Config

from pdplugins.runtime.assembly import load_profile

CHUNKS = (512, 256, 1024, 2048, 4096)
OVERLAP = {"overlap": True}
LABEL = {"flip": "label"}
STOCK = ("co-located, best chunk", "best static split", "co-located, SLO-sized steps")
"""Configurations that need none of our routers and planners."""
POLICIES = {
    "fusion": ("fusion",), "arrow": ("arrow",), "dynaserve": ("dynaserve",), "ampd": ("ampd",), "dopd": ("dopd",),
    "rapid": ("rapid", "stock"), "co-located, SLO-sized steps": ("dynaserve", "stock"),
}  # fmt: skip
"""Parts of the code that a system runs beside the simulator; those that are not named here run ``stock``."""


def systems(cell: Cell) -> dict[str, dict[str, Config]]:
    """Return the settings of each system that are tried, by name of the system and of the setting.

    RAPID stands only where the profile says what power caps do.
    """
    found = {
        "fusion": {"": fusion(cell)},
        **stock(cell),
        "arrow": {f"{chunk} tokens": arrow(cell, chunk) for chunk in (2048, 512, 8192)},
        "dynaserve": {
            f"pairs {pairs}{chunk}": cell.config(
                router={"name": "dynaserve", "pairs": pairs}, batch_scheduler=scheduler, simulation=OVERLAP
            )
            for pairs in ("roles", "any")
            for chunk, scheduler in sized()
        },
        "ampd": dict(splits(cell, router="ampd", batch_scheduler="ampd", simulation={"order": "prefill_first"})),
        "dopd": dict(splits(cell, router="dopd", batch_scheduler="dopd", simulation=OVERLAP)),
    }
    if (power := rapid(cell)) is not None:
        found["rapid"] = dict(splits(cell, router="least-loaded", power=power, simulation=OVERLAP))
    return found


def stock(cell: Cell) -> dict[str, dict[str, Config]]:
    """Return the stock configurations."""
    one_pool, two_pools = dict(routers(cell, colocated=True)), dict(routers(cell))
    return {
        STOCK[0]: {
            f"{chunk} tokens{name}": colocated(cell, router, chunk)
            for chunk in CHUNKS
            for name, router in one_pool.items()
        },
        STOCK[1]: {
            f"{split}{name}": config
            for name, router in two_pools.items()
            for split, config in splits(cell, router=router, simulation=OVERLAP)
        },
        STOCK[2]: {
            f"{name}{chunk}": cell.config(router=router, batch_scheduler=scheduler)
            for name, router in one_pool.items()
            for chunk, scheduler in sized()
        },
    }


def sized() -> Iterator[tuple[str, Config]]:
    """Yield steps sized to the TPOT SLO, and the same with large steps where nothing decodes: experts like these."""
    yield "", {"name": "dynaserve"}
    yield ", large chunks", {"name": "dynaserve", "prefill_only_tokens": 8192}


def fusion(cell: Cell, simulation: Mapping[str, Any] | None = None, **settings: Any) -> Config:
    """Return fusion as shipped, with some settings changed."""
    return cell.config(bundle={"name": "fusion", **settings}, simulation={**LABEL, **OVERLAP, **(simulation or {})})


def arrow(cell: Cell, chunk: int) -> Config:
    """Return Arrow with steps of so many tokens."""
    return cell.config(router="arrow", simulation={**LABEL, **OVERLAP, "step_tokens": chunk})


def colocated(cell: Cell, router: Mapping[str, Any], chunk: int) -> Config:
    """Return whole requests on one worker, prefilled in chunks."""
    return cell.config(router=dict(router), simulation={"step_tokens": chunk})


def routers(cell: Cell, **settings: Any) -> Iterator[tuple[str, Config]]:
    """Yield the stock routers that can matter here: that of NVIDIA Dynamo only where prefixes are shared."""
    sticky = {"sticky": True} if cell.sessions else {}
    yield "", {"name": "least-loaded", **settings, **sticky}
    if cell.blocks:
        yield ", cache-aware", {"name": "cache-aware", **settings, **sticky}


def splits(cell: Cell, **parts: Any) -> Iterator[tuple[str, Config]]:
    """Yield a system with each number of prefill workers, those in the middle first."""
    workers = cell.on.workers
    for prefill in sorted(range(1, workers), key=lambda prefill: abs(prefill - workers / 2)):
        yield f"{prefill}P{workers - prefill}D", cell.config(prefill, **parts)


def rapid(cell: Cell) -> Config | None:
    """Return RAPID with the watts that all others have: then what moves are roles. None without a power model."""
    power = load_profile(cell.on.profile).power()
    if power is None:
        return None
    most_w = power.cap_w[-1]
    return {
        "name": "rapid", "budget_w": most_w * cell.on.gpus, "max_w": most_w, "max_decode_w": most_w,
        "min_w": power.cap_w[0],
    }  # fmt: skip
