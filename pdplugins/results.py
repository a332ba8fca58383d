"""The one result schema of live and simulated runs, and the definitions of every metric in it. See docs/results.md."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pdplugins.contracts.request import Slo
from pdplugins.files import write_whole


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What one request experienced. Times are in seconds since the start of the run."""

    arrival_s: float
    isl_tokens: int
    osl_tokens: int
    token_times_s: tuple[float, ...] = ()
    """When each output token (or each chunk of them) reached the client; empty when the request failed."""
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_times_s[0] - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Time per output token: decode time over (output tokens - 1); 0 for one token."""
        if self.osl_tokens <= 1:
            return 0.0
        return (self.token_times_s[-1] - self.token_times_s[0]) / (self.osl_tokens - 1)

    @property
    def tbt_s(self) -> tuple[float, ...]:
        """Time between tokens: each gap."""
        return tuple(b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False))

    @property
    def ok(self) -> bool:
        """Whether the request was answered."""
        return self.error is None and bool(self.token_times_s)

    def inside(self, slo: Slo) -> bool:
        """Whether both objectives were met."""
        return self.ok and self.ttft_s <= slo.ttft_s and self.tpot_s <= slo.tpot_s


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Spread(_Model):
    """A distribution; all None when there were no samples."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, samples: Sequence[float] | np.ndarray[Any, Any]) -> Spread:
        """Summarise `samples`, linear interpolation between order statistics."""
        if len(samples) == 0:
            return cls()
        p50, p90, p99 = (float(q) for q in np.percentile(samples, (50, 90, 99)))
        return cls(mean=float(np.mean(samples)), p50=p50, p90=p90, p99=p99)


class Requests(_Model):
    """How many requests there were."""

    total: int
    failed: int


class Metrics(_Model):
    """What the clients got and what it cost."""

    ttft_s: Spread
    tpot_s: Spread
    tbt_s: Spread
    slo_attainment: float | None = Field(
        description="share of all requests inside both SLOs, failures count as outside"
    )
    goodput_tokens_per_s: float = Field(description="output tokens per second of requests inside both SLOs")
    goodput_requests_per_s: float = Field(description="requests per second inside both SLOs")
    gpu_hours: float = Field(description="GPU-hours held by workers, from their start to their end")
    energy_j: float | None = Field(
        None, description="joules that all GPUs drew; null where nothing says what they draw"
    )
    mean_w: float | None = Field(None, description="watts that all GPUs drew together, on the average of the run")


class Speed(_Model):
    """How fast the run itself went."""

    requests_per_s: float | None = Field(None, description="simulated requests per wall second; null when measured")
    wall_s: float
    policy_s: dict[str, float] = Field({}, description="wall seconds inside each kind of policy")
    duration_s: float = Field(description="length of the run on its own clock")


class Scaling(_Model):
    """One change of the pools."""

    at_s: float
    prefill: int
    decode: int
    reason: str = ""


class Regret(_Model):
    """How far a run stayed behind what no policy can beat: docs/bound.md."""

    best_slo_attainment: float = Field(description="no policy serves a larger share inside both SLOs on these GPUs")
    slo_attainment: float = Field(description="best_slo_attainment less what the run reached")
    fewest_gpu_hours: float | None = Field(description="no scaler reaches 99 % with less; null when none reaches it")
    gpu_hours: float | None = Field(
        description="what the run held beyond fewest_gpu_hours; null when it did not reach 99 %"
    )


class Result(_Model):
    """One run, live or simulated."""

    kind: Literal["measured", "simulated"]
    requests: Requests
    metrics: Metrics
    speed: Speed
    config: dict[str, Any]
    seed: int | None
    commit: str
    command: str
    versions: dict[str, str] = {}
    scaling: list[Scaling] = []
    counts: dict[str, int] = {}
    interrupted: bool = False
    regret: Regret | None = None

    def write(self, path: Path) -> None:
        """Write the result as JSON, whole or not at all."""
        write_whole(path, self.model_dump_json(indent=1) + "\n")


def summarise(
    records: Iterable[RequestRecord], slo: Slo, duration_s: float, gpu_hours: float
) -> tuple[Requests, Metrics]:
    """Compute every metric of a run of `duration_s` seconds from its request records."""
    everyone = list(records)
    answered = [record for record in everyone if record.ok]
    good = [record for record in answered if record.inside(slo)]
    metrics = Metrics(
        ttft_s=Spread.of([record.ttft_s for record in answered]),
        tpot_s=Spread.of([record.tpot_s for record in answered]),
        tbt_s=Spread.of([gap for record in answered for gap in record.tbt_s]),
        slo_attainment=len(good) / len(everyone) if everyone else None,
        goodput_tokens_per_s=sum(record.osl_tokens for record in good) / duration_s if duration_s > 0 else 0.0,
        goodput_requests_per_s=len(good) / duration_s if duration_s > 0 else 0.0,
        gpu_hours=gpu_hours,
    )
    return Requests(total=len(everyone), failed=len(everyone) - len(answered)), metrics


def commit() -> str:
    """Return the commit of the checkout this package runs from, or its version when it is installed.

    ``-dirty`` says that the code or its data differ from that commit; results and pages that a run writes do not count.
    """
    from pdplugins import __version__  # noqa: PLC0415 - the package may be half imported when this module is

    try:
        name = _git("rev-parse", "--short=12", "HEAD").stdout.strip()
        changed = _git("diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)benchmarks/results", ":(top,exclude)*.md")
    except (OSError, subprocess.SubprocessError):
        return f"pdplugins {__version__}"
    if not name:
        return f"pdplugins {__version__}"
    return f"{name}-dirty" if changed.returncode else name


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
