"""Says what a backtest found: how far to trust it, and what would have been, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from pdplugins.results import Spread
from pdplugins.runtime.assembly import build_deployment
from pdplugins.studies.advise.words import percent
from pdplugins.studies.backtest.recording import Felt, Inside
from pdplugins.studies.backtest.runs import Backtest, Tried
from pdplugins.verdict import shortly

FAR = 0.25
"""A mean that is off by a larger share is no ground to stand on."""


class Beside(NamedTuple):
    """One time, as it was recorded and as it is simulated."""

    name: str
    recorded_s: float | None
    simulated_s: float | None

    @property
    def off(self) -> float | None:
        """Return by what share the simulated one is longer."""
        if not self.recorded_s or self.simulated_s is None:
            return None
        return self.simulated_s / self.recorded_s - 1.0


def beside(found: Backtest) -> list[Beside]:
    """Return the times that clients felt beside the simulated ones; nothing where the workers are not known."""
    if found.ran is None:
        return []
    metrics = found.ran.metrics
    itl = metrics.tpot_s if found.recording.per_request else metrics.tbt_s
    return [*_rows("TTFT", found.recording.ttft, metrics.ttft_s), *_rows("ITL", found.recording.itl, itl)]


def _rows(name: str, recorded: Spread, simulated: Spread) -> Iterator[Beside]:
    for part in Spread.model_fields:
        yield Beside(f"{name} {part}", getattr(recorded, part), getattr(simulated, part))


def by_time(found: Backtest) -> list[tuple[Felt, Felt]]:
    """Return what was felt in each part of the recording, and what is simulated for it."""
    return list(zip(found.recording.felt, found.ran_felt, strict=True)) if found.ran is not None else []


def about(found: Backtest) -> str:
    """Say what was recorded."""
    recording = found.recording
    requests = recording.requests
    isl, osl = (sum(getattr(one, name) for one in requests) / len(requests) for name in ("isl_tokens", "osl_tokens"))
    said = (
        f"Recorded: {len(requests)} requests of {recording.name} in {recording.duration_s:.0f} s "
        f"({len(requests) / recording.duration_s:.3g}/s, {isl:.0f} tokens in and {osl:.0f} out in the mean)"
    )
    if recording.pools:
        sizes = build_deployment(found.config)
        gpus = recording.gpu_s(sizes.prefill_tp, sizes.decode_tp) / recording.duration_s
        changes = len(recording.pools) - 1
        said += (
            f"; {recording.pools[0]}"
            + (f" at first, changed {changes} times" if changes else "")
            + f", {gpus:.1f} GPUs"
        )
    if recording.inside is not None:
        said += f"; {percents(recording.inside)} inside both SLOs"
    return said


def percents(inside: Inside) -> str:
    """Return a share in percent, or its bounds."""
    if inside.low == inside.high:
        return percent(inside.low)
    return f"{percent(inside.low)} to {percent(inside.high)}"


def trust(found: Backtest) -> list[str]:
    """Say how far the simulation is from what was recorded."""
    if found.ran is None:
        return [
            "Trust: unknown. Which workers there were is not recorded; name them with --prefill and --decode, and the "
            "simulator is held against what clients felt."
        ]
    means = [one for one in beside(found) if one.name.endswith("mean") and one.off is not None]
    if not means:
        return ["Trust: unknown. Neither TTFT nor ITL was recorded."]
    said = ", ".join(f"{one.name} {100 * (one.off or 0.0):+.0f} %" for one in means)
    far = [one for one in means if abs(one.off or 0.0) > FAR]
    if not far:
        return [
            f"Trust: simulated as it ran, beside what was recorded: {said}. Smaller differences below mean nothing."
        ]
    return [
        f"Do not rely on this: simulated as it ran, beside what was recorded: {said}. Are these the GPUs and model "
        f"of the profile {found.config.deployment.profile}, the sizes of its workers, and the router {found.router}?"
    ]


def verdict(found: Backtest) -> Iterator[str]:
    """Yield what would have been, a line for each answer."""
    yield about(found)
    yield from trust(found)
    for one in found.planned:
        yield f"{one.name} would have had {_cost(one)}{_against(one, found)}; it {shortly(one.missed)}"


def _against(one: Tried, found: Backtest) -> str:
    ran = "" if found.ran is None else f", as it ran {_cost(found.ran)}"
    enough = [fixed for fixed in found.fixed if fixed.attainment >= one.attainment]
    if not enough:
        return f"{ran}, no fixed pools that were tried as much"
    fewest = min(enough, key=lambda fixed: fixed.gpus)
    return f"{ran}, and it takes {fewest.name} ({fewest.gpus:.1f} GPUs) to have as much with pools that stay"


def _cost(one: Tried) -> str:
    return f"{percent(one.attainment)} with {one.gpus:.1f} GPUs"


def as_data(found: Backtest) -> dict[str, Any]:
    """Return everything as plain data."""
    recording, slo = found.recording, found.config.slo
    sizes = build_deployment(found.config)
    return {
        "verdict": list(verdict(found)),
        "recording": {
            "name": recording.name,
            "requests": len(recording.requests),
            "duration_s": recording.duration_s,
            "ttft_s": recording.ttft.model_dump(),
            "itl_s": recording.itl.model_dump(),
            "slo_attainment": None if recording.inside is None else [recording.inside.low, recording.inside.high],
            "pools": [asdict(one) for one in recording.pools],
            "gpu_hours": recording.gpu_s(sizes.prefill_tp, sizes.decode_tp) / 3600 if recording.pools else None,
            "notes": list(recording.notes),
        },
        "slo": slo.model_dump(),
        "profile": found.config.deployment.profile,
        "router": found.router,
        "beside": [{**one._asdict(), "off": one.off} for one in beside(found)],
        "by_time": [{"recorded": asdict(one), "simulated": asdict(two)} for one, two in by_time(found)],
        "rows": [
            {
                "name": one.name,
                "pools": one.pools,
                "requests": one.requests.total,
                "failed": one.requests.failed,
                "gpus": one.gpus,
                **one.metrics.model_dump(),
            }
            for one in found.rows
        ],
    }
