"""The result schema of live and simulated runs. docs/results.md explains it, and `metrics` defines its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field

from pdplugins import metrics
from pdplugins.contracts.request import Slo
from pdplugins.files import write_whole
from pdplugins.provenance import Kind


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The latencies of one request. Times are in seconds since the start of the run."""

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
        return metrics.tpot_s(self.token_times_s[-1] - self.token_times_s[0], self.osl_tokens)

    @property
    def tbt_s(self) -> tuple[float, ...]:
        """Times between tokens, one for each gap."""
        return tuple(b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False))

    @property
    def ok(self) -> bool:
        """Whether the request was answered."""
        return self.error is None and bool(self.token_times_s)

    def inside(self, slo: Slo) -> bool:
        """Whether both objectives were met."""
        return self.ok and bool(metrics.inside(self.ttft_s, self.tpot_s, slo))


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Spread(_Model):
    """A distribution; all None when there were no samples."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, samples: ArrayLike) -> Spread:
        """Summarise `samples`, with linear interpolation between order statistics."""
        return cls.from_distribution(metrics.distribution(samples))

    @classmethod
    def from_distribution(cls, found: metrics.Distribution | None) -> Spread:
        """Return `found` as part of a result."""
        return cls() if found is None else cls(**found._asdict())


class Requests(_Model):
    """How many requests there were."""

    total: int
    failed: int


class Metrics(_Model):
    """The service that clients got, and its cost."""

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
    """The speed of the run itself."""

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
    """How much worse a run is than the bound that no policy can beat: docs/bound.md."""

    best_slo_attainment: float = Field(description="no policy serves a larger share inside both SLOs on these GPUs")
    slo_attainment: float = Field(description="best_slo_attainment less what the run reached")
    fewest_gpu_hours: float | None = Field(description="no scaler reaches 99 % with less; null when none reaches it")
    gpu_hours: float | None = Field(
        description="what the run held beyond fewest_gpu_hours; null when it did not reach 99 %"
    )


class Result(_Model):
    """One run, live or simulated."""

    kind: Kind
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
        """Write the result as JSON, completely or not at all."""
        write_whole(path, self.model_dump_json(indent=1) + "\n")


def summarise(
    records: Iterable[RequestRecord], slo: Slo, duration_s: float, gpu_hours: float
) -> tuple[Requests, Metrics]:
    """Compute every metric of a run of `duration_s` seconds from its request records."""
    everyone = list(records)
    answered = [record for record in everyone if record.ok]
    served = Served(
        total=len(everyone),
        ttft_s=[record.ttft_s for record in answered],
        tpot_s=[record.tpot_s for record in answered],
        osl_tokens=[record.osl_tokens for record in answered],
    )
    gaps = Spread.of([gap for record in answered for gap in record.tbt_s])
    return summary(served, slo, duration_s=duration_s, gpu_hours=gpu_hours, tbt_s=gaps)


@dataclass(frozen=True, slots=True)
class Served:
    """The data that all metrics are computed from. Sequences have one entry for each answered request."""

    total: int
    """All requests, including failed ones."""
    ttft_s: Sequence[float | None]
    """None where no token came."""
    tpot_s: Sequence[float | None]
    osl_tokens: Sequence[int]


def summary(
    served: Served, slo: Slo, *, duration_s: float, gpu_hours: float, tbt_s: Spread, energy_j: float | None = None
) -> tuple[Requests, Metrics]:
    """Compute the metrics of a live or simulated run of `duration_s` seconds, as `metrics` defines them."""
    ttft_s, tpot_s = np.array(served.ttft_s, dtype=float), np.array(served.tpot_s, dtype=float)
    good = metrics.inside(ttft_s, tpot_s, slo)
    found = Metrics(
        ttft_s=Spread.of(ttft_s[~np.isnan(ttft_s)]),
        tpot_s=Spread.of(tpot_s[~np.isnan(tpot_s)]),
        tbt_s=tbt_s,
        slo_attainment=metrics.attainment(int(good.sum()), served.total),
        goodput_tokens_per_s=metrics.per_second(int(np.array(served.osl_tokens, dtype=int)[good].sum()), duration_s),
        goodput_requests_per_s=metrics.per_second(int(good.sum()), duration_s),
        gpu_hours=gpu_hours,
        energy_j=energy_j,
        mean_w=metrics.per_second(energy_j, duration_s) if energy_j is not None and duration_s > 0 else None,
    )
    return Requests(total=served.total, failed=served.total - len(served.ttft_s)), found
