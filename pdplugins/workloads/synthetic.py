"""Seeded synthetic workloads: arrivals, lengths, sessions and phases, each as a setting.

The default is bursty traffic, for use without a trace: a Markov-modulated Poisson process with log-normal lengths,
which roughly fits the published traces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdplugins.workloads.arrivals import MOST, Arrivals, Closed, Mmpp, Ramp, check_size
from pdplugins.workloads.draws import Draw, Lognormal
from pdplugins.workloads.rows import LARGEST, MAX_TOKENS
from pdplugins.workloads.trace import Round, TraceRequest

DURATION_S = 300.0
"""Duration of a phase that sets neither its duration nor its number of requests."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Sessions(_Section):
    """The rounds after the first request of each session."""

    rounds: Draw = Field(description="rounds of a session, the first one included")
    gap_s: Draw = Field(description="seconds between an answer and the next round: a tool, or a person")
    new_tokens: Draw = Field(description="prompt tokens of a later round beyond its history")
    osl_tokens: Draw | None = Field(None, description="output of a later round; that of the first when absent")


class Phase(_Section):
    """Traffic of one kind."""

    duration_s: float | None = Field(None, gt=0, le=LARGEST, description="seconds; 300 when `requests` is absent too")
    requests: int | None = Field(None, ge=1, le=MOST, description="requests, or sessions")
    arrivals: Arrivals = Field(Mmpp(), description="constant, poisson, gamma, mmpp, ramp or closed")
    isl_tokens: Draw = Field(Lognormal(median=1200, sigma=0.6, high=16384), description="prompt length")
    osl_tokens: Draw = Field(Lognormal(median=180, sigma=0.6, high=16384), description="output length")
    pairs: tuple[tuple[int, int], ...] = Field((), description="(prompt, output) lengths to draw from instead")
    sessions: Sessions | None = Field(None, description="later rounds; single requests when absent")

    @model_validator(mode="after")
    def _consistent(self) -> Phase:
        if isinstance(self.arrivals, Ramp) and self.duration_s is None:
            raise ValueError("a ramp needs duration_s")
        if isinstance(self.arrivals, Closed) and self.sessions is not None:
            raise ValueError("closed arrivals have rounds of their own; leave out sessions")
        if any(min(pair) < 1 or max(pair) > MAX_TOKENS for pair in self.pairs):
            raise ValueError(f"pairs: every length is at least 1, and at most {MAX_TOKENS}")
        return self


class SyntheticSettings(Phase):
    """A whole workload. Keys of a phase at the top level are defaults for all phases."""

    seed: int = Field(0, ge=0, description="same seed, same bytes")
    phases: tuple[Phase, ...] = Field((), description="one after the other; a single one when absent")

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        phases = data.get("phases") if isinstance(data, dict) else None
        if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
            return data
        shared = {key: value for key, value in data.items() if key in Phase.model_fields}
        return {**data, "phases": [{**shared, **phase} for phase in phases]}


def synthetic(settings: SyntheticSettings, _path: Path | None = None) -> Iterator[TraceRequest]:
    """Generate the trace that `settings` describes. No file is read."""
    rng = np.random.default_rng(settings.seed)
    start_s, made = 0.0, 0
    for phase in settings.phases or (settings,):
        end_s = start_s
        for request in _phase(phase, rng, start_s, made):
            yield request
            made, end_s = made + 1, request.arrival_s
        start_s = end_s if phase.duration_s is None else start_s + phase.duration_s


def _phase(phase: Phase, rng: np.random.Generator, start_s: float, number: int) -> Iterator[TraceRequest]:
    requests = math.inf if phase.requests is None else phase.requests
    default_s = DURATION_S if phase.requests is None else math.inf
    times_s = phase.arrivals.times_s(rng, phase.duration_s or default_s, requests)
    check_size(number + len(times_s))
    isl, osl = _lengths(phase, rng, len(times_s))
    later = _later(phase, rng, len(times_s))
    for index, at_s in enumerate((start_s + times_s).tolist()):
        rounds = next(later, ())
        session = f"s{number + index}" if rounds else None
        yield TraceRequest(at_s, isl[index], osl[index], session=session, rounds=rounds)


def _lengths(phase: Phase, rng: np.random.Generator, count: int) -> tuple[list[int], list[int]]:
    if phase.pairs:
        chosen = np.asarray(phase.pairs)[rng.integers(len(phase.pairs), size=count)]
        return chosen[:, 0].tolist(), chosen[:, 1].tolist()
    return phase.isl_tokens.tokens(rng, count), phase.osl_tokens.tokens(rng, count)


def _later(phase: Phase, rng: np.random.Generator, count: int) -> Iterator[tuple[Round, ...]]:
    """Yield the later rounds of each session; there are none where the phase has single requests."""
    if isinstance(phase.arrivals, Closed):
        each = phase.arrivals.requests_each - 1
        for _ in range(count):
            isl, osl = _lengths(phase, rng, each)
            yield _rounds(phase.arrivals.think_s.draw(rng, each).tolist(), isl, osl, 0)
    elif (sessions := phase.sessions) is not None:
        counts = sessions.rounds.tokens(rng, count)
        check_size(sum(counts))
        for each in counts:
            new = sessions.new_tokens.tokens(rng, each - 1)
            osl = (sessions.osl_tokens or phase.osl_tokens).tokens(rng, each - 1)
            yield _rounds(sessions.gap_s.draw(rng, each - 1).tolist(), new, osl, None)


def _rounds(gaps_s: list[float], new: list[int], osl: list[int], history: int | None) -> tuple[Round, ...]:
    return tuple(Round(round(gap, 6), n, o, history) for gap, n, o in zip(gaps_s, new, osl, strict=True))
