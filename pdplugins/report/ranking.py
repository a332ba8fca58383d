"""The metrics that runs are shown and compared by, and the best runs of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pdplugins.report.series import Series
from pdplugins.results import Result
from pdplugins.verdict import Missed


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as a report shows it."""

    name: str
    result: Result
    series: Series | None
    missed: Missed | None = None
    """Why requests were outside the objectives; None where only the result was kept."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the comparison."""

    key: str
    title: str
    best: Callable[..., float | None]
    """`max` or `min`."""
    value: Callable[[Result], float | None]
    shown: str = "{:.3f}"
    scale: float = 1.0

    def text(self, result: Result) -> str:
        """Return the cell of one run."""
        value = self.value(result)
        return "n/a" if value is None else self.shown.format(value * self.scale)


COLUMNS = (
    Column(key="slo_attainment", title="SLO att. %", best=max, value=lambda r: r.metrics.slo_attainment,
           shown="{:.2f}", scale=100),
    Column(key="goodput_requests_per_s", title="goodput req/s", best=max, shown="{:.2f}",
           value=lambda r: r.metrics.goodput_requests_per_s),
    Column(key="goodput_tokens_per_s", title="tokens/s", best=max, shown="{:.0f}",
           value=lambda r: r.metrics.goodput_tokens_per_s),
    Column(key="ttft_s.mean", title="TTFT mean s", best=min, value=lambda r: r.metrics.ttft_s.mean),
    Column(key="ttft_s.p99", title="P99 s", best=min, value=lambda r: r.metrics.ttft_s.p99),
    Column(key="tpot_s.mean", title="TPOT mean ms", best=min, value=lambda r: r.metrics.tpot_s.mean,
           shown="{:.1f}", scale=1e3),
    Column(key="tpot_s.p99", title="P99 ms", best=min, value=lambda r: r.metrics.tpot_s.p99,
           shown="{:.1f}", scale=1e3),
    Column(key="tbt_s.p99", title="TBT P99 ms", best=min, value=lambda r: r.metrics.tbt_s.p99,
           shown="{:.1f}", scale=1e3),
    Column(key="gpu_hours", title="GPU-hours", best=min, value=lambda r: r.metrics.gpu_hours, shown="{:.2f}"),
)  # fmt: skip
"""Metrics that every comparison has."""
DISTRIBUTION = ("mean", "P50", "P90", "P99")
"""Heads of the cells of `latencies`."""
REGRET = (
    Column(key="regret.slo_attainment", title="behind best %", best=min, shown="{:.2f}", scale=100,
           value=lambda r: None if r.regret is None else r.regret.slo_attainment),
    Column(key="regret.gpu_hours", title="GPU-h beyond fewest", best=min, shown="{:.2f}",
           value=lambda r: None if r.regret is None else r.regret.gpu_hours),
)  # fmt: skip
"""More metrics, where the bound was computed."""
WATTS = Column("mean_w", "mean W", min, lambda r: r.metrics.mean_w, "{:.0f}")
"""One more metric, where the profile says what GPUs draw."""
ALL = (*COLUMNS, WATTS, *REGRET)


def columns(runs: Sequence[Run]) -> tuple[Column, ...]:
    """Return the columns for which `runs` have numbers."""
    watts = (WATTS,) if any(run.result.metrics.mean_w is not None for run in runs) else ()
    return COLUMNS + watts + (REGRET if any(run.result.regret for run in runs) else ())


def best_of(results: dict[str, Result]) -> dict[str, list[str]]:
    """Return the names of the best runs by column; none where all runs are equal, or one was interrupted."""
    best: dict[str, list[str]] = {column.key: [] for column in ALL}
    if any(result.interrupted for result in results.values()):
        return best
    for column in ALL:
        values = {name: column.value(result) for name, result in results.items()}
        known = [value for value in values.values() if value is not None]
        top = column.best(known, default=None)
        if len(set(values.values())) > 1:
            best[column.key] = [name for name, value in values.items() if value == top]
    return best


def latencies(result: Result) -> Iterator[tuple[str, ...]]:
    """Yield the rows of TTFT (s), TPOT and TBT (ms): the title, then what `DISTRIBUTION` names."""
    metrics = result.metrics
    for title, spread, scale, digits in (
        ("TTFT, s", metrics.ttft_s, 1.0, 3),
        ("TPOT, ms", metrics.tpot_s, 1e3, 1),
        ("TBT, ms", metrics.tbt_s, 1e3, 1),
    ):
        values = (spread.mean, spread.p50, spread.p90, spread.p99)
        yield title, *("n/a" if value is None else f"{value * scale:.{digits}f}" for value in values)


def unlike(runs: Sequence[Run]) -> list[str]:
    """Return warnings on what a comparison should have in common but has not: GPUs, profile, SLO or length."""
    found = []
    if any(run.result.interrupted for run in runs):
        found.append("not like with like: interrupted, each at another moment; so none is marked best")
    for title, section, key in (
        ("GPUs", "deployment", "gpu_budget"),
        ("profile", "deployment", "profile"),
        ("TTFT SLO, s", "slo", "ttft_s"),
        ("TPOT SLO, s", "slo", "tpot_s"),
    ):
        values = {run.name: run.result.config[section][key] for run in runs}
        if len(set(values.values())) > 1:
            found.append(f"not like with like: {title} " + ", ".join(f"{name} {v}" for name, v in values.items()))
    return found
