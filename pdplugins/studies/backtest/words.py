"""Says what a backtest found: how far to trust it, and what would have been, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from pdplugins.results import Spread
from pdplugins.runtime.assembly import build_deployment
from pdplugins.studies.advise.words import percent
from pdplugins.studies.backtest.recording import AttainmentBounds, Latencies
from pdplugins.studies.backtest.runs import Backtest, Trial
from pdplugins.verdict import shortly

FAR = 0.25
"""A simulated mean that is off by a larger share than this is not to be relied on."""


class Comparison(NamedTuple):
    """One time, as it was recorded and as it is simulated."""

    name: str
    recorded_s: float | None
    simulated_s: float | None

    @property
    def relative_error(self) -> float | None:
        """Return by what share the simulated one is longer."""
        if not self.recorded_s or self.simulated_s is None:
            return None
        return self.simulated_s / self.recorded_s - 1.0


def compared(found: Backtest) -> list[Comparison]:
    """Return the recorded times with the simulated ones; nothing where the workers are not known."""
    if found.ran is None:
        return []
    metrics = found.ran.metrics
    itl = found.ran_itl if found.recording.per_request else metrics.tbt_s
    return [*_rows("TTFT", found.recording.ttft, metrics.ttft_s), *_rows("ITL", found.recording.itl, itl)]


def _rows(name: str, recorded: Spread, simulated: Spread) -> Iterator[Comparison]:
    for part in Spread.model_fields:
        yield Comparison(f"{name} {part}", getattr(recorded, part), getattr(simulated, part))


def by_time(found: Backtest) -> list[tuple[Latencies, Latencies]]:
    """Return the recorded and the simulated latencies of each part of the recording."""
    return list(zip(found.recording.by_part, found.ran_by_part, strict=True)) if found.ran is not None else []


def about(found: Backtest) -> str:
    """Say what was recorded."""
    recording = found.recording
    requests = recording.requests
    isl, osl = (
        sum(getattr(request, name) for request in requests) / len(requests) for name in ("isl_tokens", "osl_tokens")
    )
    line = (
        f"Recorded: {len(requests)} requests of {recording.name} in {recording.duration_s:.0f} s "
        f"({len(requests) / recording.duration_s:.3g}/s, {isl:.0f} tokens in and {osl:.0f} out in the mean)"
    )
    if recording.pools:
        sizes = build_deployment(found.config)
        gpus = recording.gpu_s(sizes.prefill_tp, sizes.decode_tp) / recording.duration_s
        changes = len(recording.pools) - 1
        line += (
            f"; {recording.pools[0]}"
            + (f" at first, changed {changes} times" if changes else "")
            + f", {gpus:.1f} GPUs"
        )
    if recording.attainment is not None:
        line += f"; {percents(recording.attainment)} inside both SLOs"
    return line


def percents(bounds: AttainmentBounds) -> str:
    """Return a share in percent, or its bounds."""
    if bounds.low == bounds.high:
        return percent(bounds.low)
    return f"{percent(bounds.low)} to {percent(bounds.high)}"


def trust(found: Backtest) -> list[str]:
    """Say how far the simulation is from what was recorded."""
    if found.ran is None:
        return [
            "Trust: unknown. Which workers there were is not recorded; name them with --prefill and --decode, and the "
            "simulator is held against what clients felt."
        ]
    means = [time for time in compared(found) if time.name.endswith("mean") and time.relative_error is not None]
    if not means:
        return ["Trust: unknown. Neither TTFT nor ITL was recorded."]
    errors = ", ".join(f"{time.name} {100 * (time.relative_error or 0.0):+.0f} %" for time in means)
    far = [time for time in means if abs(time.relative_error or 0.0) > FAR]
    if not far:
        return [
            f"Trust: simulated as it ran, beside what was recorded: {errors}. Smaller differences below mean nothing."
        ]
    return [
        f"Do not rely on this: simulated as it ran, beside what was recorded: {errors}. Are these the GPUs and model "
        f"of the profile {found.config.deployment.profile}, the sizes of its workers, and the router {found.router}?"
    ]


def verdict(found: Backtest) -> Iterator[str]:
    """Yield what would have been, a line for each answer."""
    yield about(found)
    yield from trust(found)
    for trial in found.planned:
        yield f"{trial.name} would have had {_cost(trial)}{_against(trial, found)}; it {shortly(trial.missed)}"


def _against(trial: Trial, found: Backtest) -> str:
    ran = "" if found.ran is None else f", as it ran {_cost(found.ran)}"
    enough = [fixed for fixed in found.fixed if fixed.attainment >= trial.attainment]
    if not enough:
        return f"{ran}; no fixed pools that were tried have as much"
    fewest = min(enough, key=lambda fixed: fixed.gpus)
    return (
        f"{ran}; the smallest fixed pools that were tried and have as much are {fewest.pools} ({fewest.gpus:.1f} GPUs)"
    )


def _cost(trial: Trial) -> str:
    return f"{percent(trial.attainment)} with {trial.gpus:.1f} GPUs"


def as_data(found: Backtest) -> dict[str, Any]:
    """Return everything as plain data."""
    recording, slo = found.recording, found.config.slo
    bounds = recording.attainment
    sizes = build_deployment(found.config)
    return {
        "verdict": list(verdict(found)),
        "recording": {
            "name": recording.name,
            "requests": len(recording.requests),
            "duration_s": recording.duration_s,
            "ttft_s": recording.ttft.model_dump(),
            "itl_s": recording.itl.model_dump(),
            "slo_attainment": None if bounds is None else [bounds.low, bounds.high],
            "pools": [asdict(pools) for pools in recording.pools],
            "gpu_hours": recording.gpu_s(sizes.prefill_tp, sizes.decode_tp) / 3600 if recording.pools else None,
            "notes": list(recording.notes),
        },
        "slo": slo.model_dump(),
        "profile": found.config.deployment.profile,
        "router": found.router,
        "beside": [{**time._asdict(), "off": time.relative_error} for time in compared(found)],
        "by_time": [
            {"recorded": asdict(recorded), "simulated": asdict(simulated)} for recorded, simulated in by_time(found)
        ],
        "rows": [
            {
                "name": trial.name,
                "pools": trial.pools,
                "requests": trial.requests.total,
                "failed": trial.requests.failed,
                "gpus": trial.gpus,
                **trial.metrics.model_dump(),
            }
            for trial in found.rows
        ],
    }
