"""The traffic of a Dynamo frontend, out of the metrics that a Prometheus has recorded of it.

Requests are counted per step, and lengths come as histograms per step. So arrivals are drawn evenly at random within
each step, and lengths from the histogram of their step: log-uniform within a bucket, then scaled to the mean, which is
recorded exactly. What is lost is said: bursts shorter than a step, and which prompt had which output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pdplugins.config import MOST_GPUS
from pdplugins.contracts.request import Slo
from pdplugins.contracts.workers import Role
from pdplugins.errors import ConfigError, TraceError, one_line
from pdplugins.hosts.dynamo.doors.frontend import CACHED, HISTOGRAMS, ISL, ITL, OSL, REQUESTS, TTFT
from pdplugins.hosts.dynamo.scrape import Histogram
from pdplugins.studies.backtest.prometheus import MOST_STEPS, Prometheus, Series, Span
from pdplugins.studies.backtest.recording import (
    PARTS,
    AttainmentBounds,
    Latencies,
    Pools,
    Recording,
    changes,
    spread,
    total,
)
from pdplugins.workloads.rows import MAX_TOKENS
from pdplugins.workloads.trace import TraceRequest

POOLS = (
    "dynamo_planner_num_{role}_replicas{{{match}}}",
    'pdplugins_planner_ready_replicas{{role="{role}",{match}}}',
    'pdplugins_local_workers{{role="{role}",phase="ready",{match}}}',
)
"""Who may say how many workers there were, the first that does: prefill and decode."""
SCRAPES = 4
"""Fewest scrapes in a step, so that there is a rate in it."""
LEAST_STEP_S = 5.0
STEPS = 240
"""Steps of a recording, unless a step is asked for or would be too short."""
LOOK_S = 300.0
"""Shortest time in which scrapes are counted, to learn how often there are any."""
MOST_REQUESTS = 1_000_000
CACHED_SHARE = 0.02
"""A larger share of prompts out of caches is worth a note."""
MOST_COUNTED, LEAST_COUNTED = 1e15, 1e-6
"""The most that a metric may grow by in a step, and the least number of samples: what lies beyond is no traffic."""
SPREAD = 0.6
"""Sigma of log-normal lengths, where only their mean is recorded."""
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Floats = NDArray[np.float64]
Done = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which metrics of a Prometheus are meant."""

    start_s: float
    """Unix time."""
    end_s: float
    step_s: float | None = None
    """None for one that fits the scrapes."""
    model: str | None = None
    """None where there is one only."""
    match: tuple[str, ...] = ()
    """Labels of the deployment, each as ``name=value``."""


@dataclass(frozen=True, slots=True)
class Window:
    """One step of the recording."""

    start_s: float
    requests: float
    histograms: Mapping[str, Histogram]


def record(server: Prometheus, selection: Selection, slo: Slo, seed: int, done: Done = lambda _: None) -> Recording:
    """Ask `server` for the traffic, and rebuild it. Raises HostError, ConfigError, and TraceError without traffic."""
    match = _matchers(selection.match)
    span = _span(server, selection, match)
    model = _model(server, selection, match, span)
    match = [*match, f"model={_quoted(model)}"]
    found = server.ask(_queries(match, span.step_s), span, lambda share: done(0.9 * share))
    windows = _windows(found, span)
    pools = _pools(server, _matchers(selection.match), span)
    done(1.0)
    requests, notes = _rebuilt(windows, span.step_s, seed)
    return Recording(
        name=model,
        requests=requests,
        duration_s=span.steps * span.step_s,
        ttft=spread(_all(windows, TTFT)),
        itl=spread(_all(windows, ITL)),
        attainment=_attainment(windows, slo),
        by_part=tuple(_by_part(windows, span)),
        pools=pools,
        notes=(
            f"arrivals and lengths are drawn within steps of {span.step_s:.3g} s, from their histograms: bursts within "
            "one, and which prompt had which output, are not recorded",
            *notes,
            *_cache_note(windows),
        ),
    )


# --- queries ----------------------------------------------------------------------------------------------------------


def _matchers(match: Sequence[str]) -> list[str]:
    """Return the labels as PromQL has them. Raises ConfigError."""
    found = []
    for label in match:
        name, equals, value = label.partition("=")
        if not equals or not LABEL.fullmatch(name):
            raise ConfigError(f"--match {one_line(label)}: write LABEL=VALUE, for example namespace=prod")
        found.append(f"{name}={_quoted(value)}")
    return found


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _duration(time_s: float) -> str:
    return f"{1e3 * time_s:.0f}ms"


def _span(server: Prometheus, selection: Selection, match: Sequence[str]) -> Span:
    """Return the range in steps that have enough scrapes. Raises ConfigError or TraceError."""
    length_s = selection.end_s - selection.start_s
    if length_s <= 0:
        raise ConfigError("--from, --to: the time ends before it begins")
    scrape_s = _scrape_s(server, selection, match)
    step_s = selection.step_s or _step_s(length_s, scrape_s)
    if step_s < 2 * scrape_s:
        raise ConfigError(
            f"--step-s {step_s:g}: metrics are recorded every {scrape_s:.3g} s; a step needs two at least, better "
            f"{SCRAPES}"
        )
    if length_s / step_s > MOST_STEPS or length_s < 2 * step_s:
        raise ConfigError(
            f"--from, --to: {length_s:.0f} s in steps of {step_s:g} s are not 2 to {MOST_STEPS} of them; choose "
            "others, or another --step-s"
        )
    return Span(selection.start_s, selection.end_s, step_s)


def _step_s(length_s: float, scrape_s: float) -> float:
    """Return a step, in whole milliseconds, that is long enough and divides the time."""
    least_s = max(SCRAPES * scrape_s, length_s / STEPS, LEAST_STEP_S)
    return math.floor(1e3 * length_s / max(math.floor(length_s / least_s), 1)) / 1e3


def _scrape_s(server: Prometheus, selection: Selection, match: Sequence[str]) -> float:
    """Return the seconds between two scrapes. Raises TraceError where nothing was recorded."""
    length_s = selection.end_s - selection.start_s
    length_s = min(max(LOOK_S, length_s / STEPS), length_s)
    query = f"max(count_over_time({REQUESTS}{{{','.join(match)}}}[{_duration(length_s)}]))"
    pieces = max(int((selection.end_s - selection.start_s) / length_s), 1)
    found = server.ask({"scrapes": query}, Span(selection.start_s, selection.start_s + pieces * length_s, length_s))
    counts = [value for series in found["scrapes"] for _, value in series.points if value > 1]
    if not counts:
        raise TraceError(
            f"--prometheus {server.url}: no {REQUESTS} was recorded at that time; say when by --from and --to, and "
            "check --match. It is on the page /metrics of Dynamo's frontend"
        )
    return length_s / (max(counts) - 1)


def _model(server: Prometheus, selection: Selection, match: Sequence[str], span: Span) -> str:
    """Return the model that is meant. Raises ConfigError where that is not clear."""
    whole = Span(span.start_s, span.start_s + span.steps * span.step_s, span.steps * span.step_s)
    query = f"sum by (model) (increase({REQUESTS}{{{','.join(match)}}}[{_duration(whole.step_s)}]))"
    found = server.ask({"models": query}, whole)["models"]
    names = sorted({series.labels.get("model", "") for series in found})
    wanted = selection.model.lower() if selection.model else None  # the frontend lower-cases its label
    if wanted is not None and wanted not in names:
        raise ConfigError(
            f"--model {one_line(selection.model)}: not recorded at that time; there is {one_line(', '.join(names))}"
        )
    if wanted is None and len(names) > 1:
        raise ConfigError(f"--model: say which of {one_line(', '.join(names))}; a backtest is of one")
    if not names:
        raise TraceError(f"--from, --to: {REQUESTS} was not recorded in the steps of that time; give a longer time")
    return wanted or names[0]


def _queries(match: Sequence[str], step_s: float) -> dict[str, str]:
    def increase(name: str) -> str:
        return f"increase({name}{{{','.join(match)}}}[{_duration(step_s)}])"

    queries = {REQUESTS: f"sum({increase(REQUESTS)})"}
    for name in HISTOGRAMS:
        queries |= {f"{name}_{part}": f"sum({increase(f'{name}_{part}')})" for part in ("count", "sum")}
        queries[f"{name}_bucket"] = f"sum by (le) ({increase(f'{name}_bucket')})"
    return queries


def _pools(server: Prometheus, match: Sequence[str], span: Span) -> tuple[Pools, ...]:
    """Return the workers that there were, from who says it; nothing where nobody does."""
    labels = ",".join(match)
    for template in POOLS:
        found = server.ask({role: f"sum({template.format(role=role, match=labels)})" for role in Role}, span)
        prefill, decode = (dict(found[role][0].points) if found[role] else {} for role in Role)
        seen = [
            Pools(at_s - span.start_s, round(prefill[at_s]), round(decode[at_s]))
            for at_s in sorted(prefill.keys() & decode.keys())
        ]
        # Without a worker of each role, nothing is served.
        if kept := [pools for pools in seen if min(pools.prefill, pools.decode) > 0 and _possible(pools)]:
            return changes([replace(kept[0], at_s=0.0), *kept])
    return ()


def _possible(pools: Pools) -> bool:
    return max(pools.prefill, pools.decode) <= MOST_GPUS


# --- answers ----------------------------------------------------------------------------------------------------------


def _windows(found: Mapping[str, Sequence[Series]], span: Span) -> list[Window]:
    def by_window(series: Series) -> dict[int, float]:
        return {round((at_s - span.start_s) / span.step_s): _counted(value) for at_s, value in series.points}

    def single(name: str) -> dict[int, float]:
        return by_window(found[name][0]) if found[name] else {}

    requests = single(REQUESTS)
    counts = {name: (single(f"{name}_count"), single(f"{name}_sum")) for name in HISTOGRAMS}
    buckets = {name: [(_bound(series), by_window(series)) for series in found[f"{name}_bucket"]] for name in HISTOGRAMS}
    windows = []
    for index in range(1, span.steps + 1):
        histograms = {
            name: _histogram(
                counts[name][0].get(index, 0.0),
                counts[name][1].get(index, 0.0),
                [(bound, values.get(index, 0.0)) for bound, values in buckets[name]],
            )
            for name in HISTOGRAMS
        }
        windows.append(Window((index - 1) * span.step_s, requests.get(index, 0.0), histograms))
    return windows


def _counted(value: float) -> float:
    """Return what a counter has grown by. Raises TraceError for more than a frontend can count."""
    if value > MOST_COUNTED:
        raise TraceError(
            f"--prometheus: a metric has grown by {value:.3g} in one step, and {MOST_COUNTED:g} is the most; is this "
            "the Prometheus of a frontend?"
        )
    return max(value, 0.0)


def _histogram(count: float, summed: float, buckets: Sequence[tuple[float, float]]) -> Histogram:
    """Return a histogram whose buckets rise up to the count; an empty one where hardly a sample is."""
    highest: dict[float, float] = {}
    for bound, inside in buckets:
        highest[bound] = max(highest.get(bound, 0.0), inside)
    if count < LEAST_COUNTED:
        return Histogram(0.0, 0.0, tuple((bound, 0.0) for bound in sorted(highest)))
    rising = accumulate((highest[bound] for bound in sorted(highest)), max)
    return Histogram(count, summed, tuple(zip(sorted(highest), (min(inside, count) for inside in rising), strict=True)))


def _bound(series: Series) -> float:
    """Return the upper bound of a bucket. The last one is that of all samples, whatever it says."""
    try:
        bound = float(series.labels["le"])
    except (KeyError, ValueError):
        return math.inf
    return max(bound, 0.0) if bound <= MOST_COUNTED else math.inf


def _all(windows: Sequence[Window], name: str) -> Histogram:
    return total([window.histograms[name] for window in windows])


def _attainment(windows: Sequence[Window], slo: Slo) -> AttainmentBounds | None:
    """Bound the share inside both objectives, which are recorded apart: by Fréchet's bounds.

    The ITL is that of gaps, not of requests, so the share is an estimate even where both bounds are equal.
    """
    ttft = _all(windows, TTFT).share_below(slo.ttft_s)
    itl = _all(windows, ITL).share_below(slo.tpot_s)
    if ttft is None or itl is None:
        return None
    high = min(ttft, itl)
    return AttainmentBounds(min(max(ttft + itl - 1.0, 0.0), high), high)


def _by_part(windows: Sequence[Window], span: Span) -> Iterator[Latencies]:
    parts = min(PARTS, len(windows))
    for number in range(parts):
        part = windows[number * len(windows) // parts : (number + 1) * len(windows) // parts]
        yield Latencies(
            start_s=part[0].start_s,
            end_s=part[-1].start_s + span.step_s,
            requests=round(sum(window.requests for window in part)),
            ttft_s=_all(part, TTFT).mean,
            itl_s=_all(part, ITL).mean,
        )


def _cache_note(windows: Sequence[Window]) -> Iterator[str]:
    cached, isl = _all(windows, CACHED), _all(windows, ISL)
    share = min(cached.total / isl.total, 1.0) if isl.total >= LEAST_COUNTED else 0.0
    if share > CACHED_SHARE:
        yield (
            f"{share:.0%} of the prompt tokens were in a cache; the simulation computes them all, so its TTFT is too "
            "long, and it needs too many prefill workers"
        )


# --- the traffic ------------------------------------------------------------------------------------------------------


def _rebuilt(windows: Sequence[Window], step_s: float, seed: int) -> tuple[list[TraceRequest], list[str]]:
    """Return requests that give these windows. Raises TraceError for none, and for too many."""
    so_far = np.round(np.cumsum([0.0, *(window.requests for window in windows)]))
    if not 0 < so_far[-1] <= MOST_REQUESTS:
        raise TraceError(
            f"--from, --to: {so_far[-1]:.0f} requests were recorded at that time; a backtest takes 1 to {MOST_REQUESTS}"
        )
    counts = np.diff(so_far).astype(int)
    rng = np.random.default_rng(seed)
    whole = {name: _all(windows, name) for name in (ISL, OSL)}
    for name, histogram in whole.items():
        if histogram.mean is None:
            raise TraceError(f"--prometheus: {name} was not recorded at that time; a backtest needs the lengths")
    requests: list[TraceRequest] = []
    for window, count in zip(windows, counts, strict=True):
        times_s = window.start_s + np.sort(rng.uniform(0.0, step_s, count))
        isl, osl = (_lengths(rng, window.histograms[name], whole[name], count) for name in (ISL, OSL))
        requests += [
            TraceRequest(round(float(at_s), 6), int(prompt), int(output))
            for at_s, prompt, output in zip(times_s, isl, osl, strict=True)
        ]
    bare = [name for name, histogram in whole.items() if not histogram.bounds]
    return requests, [f"{name} has no buckets; lengths are log-normal around its means" for name in bare]


def _lengths(rng: np.random.Generator, window: Histogram, whole: Histogram, count: int) -> Floats:
    """Draw `count` lengths in tokens from the histogram of a window; from that of all where it has no samples."""
    found = window if window.mean is not None else whole
    mean = found.mean or 1.0
    drawn = _from_buckets(rng, found, count) if found.bounds else rng.lognormal(-(SPREAD**2) / 2, SPREAD, count)
    expected = _bucket_mean(found) if found.bounds else 1.0
    return np.clip(np.round(drawn * mean / expected), 1, MAX_TOKENS)


def _edges(found: Histogram) -> tuple[Floats, Floats, Floats]:
    """Return lower and upper edges of the buckets, and the share of samples in each. The last one has no width."""
    bounds = [bound for bound, _ in found.bounds]
    finite = [bound for bound in bounds if bound != float("inf")]
    highs = np.array([bound if bound != float("inf") else finite[-1] if finite else 1.0 for bound in bounds])
    lows = np.array([1.0, *highs[:-1]])
    weights = np.maximum(np.diff([0.0, *(count for _, count in found.bounds)]), 0.0)
    weights = weights if weights.sum() > 0 else np.ones(len(bounds))
    highs = np.maximum(highs, 1.0)
    return np.clip(lows, 1.0, highs), highs, weights / weights.sum()


def _from_buckets(rng: np.random.Generator, found: Histogram, count: int) -> Floats:
    lows, highs, shares = _edges(found)
    chosen = rng.choice(len(shares), size=count, p=shares)
    drawn: Floats = lows[chosen] * (highs[chosen] / lows[chosen]) ** rng.uniform(0.0, 1.0, count)
    return drawn


def _bucket_mean(found: Histogram) -> float:
    """Return the mean that `_from_buckets` has: that of a log-uniform bucket is its width over the log of its ratio."""
    lows, highs, shares = _edges(found)
    ratio = np.log(highs / lows)
    means = np.where(ratio > 0, (highs - lows) / np.where(ratio > 0, ratio, 1.0), lows)
    return float((means * shares).sum())
