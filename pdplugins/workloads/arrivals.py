"""Arrival processes, as a workload file names them: ``{kind: gamma, rate: 4, cv: 2}``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pdplugins.errors import TraceError
from pdplugins.workloads.draws import Draw, Fixed, Floats
from pdplugins.workloads.rows import LARGEST

LOWEST_RATE, SHORTEST_SPELL_S = 1e-6, 1e-3
MOST = 10**8
"""Arrivals of one process; more do not fit into memory."""
MOST_SPELLS = 10**6
Rate = Annotated[float, Field(ge=LOWEST_RATE, le=LARGEST, description="mean requests per second")]
Spell = Annotated[float, Field(ge=SHORTEST_SPELL_S, le=LARGEST)]


class _Process(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def times_s(self, rng: np.random.Generator, duration_s: float, requests: float) -> Floats:
        """Return ascending arrival times below `duration_s`, at most `requests` of them. One of both must be finite."""
        raise NotImplementedError


class _Renewal(_Process):
    """Independent gaps of one distribution."""

    rate: Rate

    def times_s(self, rng: np.random.Generator, duration_s: float, requests: float) -> Floats:
        return renewal(lambda count: self._gaps_s(rng, count), self.rate, duration_s, requests)

    def _gaps_s(self, rng: np.random.Generator, count: int) -> Floats:
        raise NotImplementedError


class Constant(_Renewal):
    """One request every 1/rate seconds."""

    kind: Literal["constant"] = "constant"

    def _gaps_s(self, rng: np.random.Generator, count: int) -> Floats:
        return np.full(count, 1 / self.rate)


class Poisson(_Renewal):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"

    def _gaps_s(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.exponential(1 / self.rate, count)


class Gamma(_Renewal):
    """Gamma gaps. A coefficient of variation `cv` of 1 is Poisson, more is burstier, and less is more regular."""

    kind: Literal["gamma"] = "gamma"
    cv: float = Field(ge=1e-6, le=1e6, description="standard deviation of the gaps over their mean")

    def _gaps_s(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.gamma(1 / self.cv**2, self.cv**2 / self.rate, count)


class Mmpp(_Process):
    """Markov-modulated Poisson process of two states, calm and burst.

    This is the simplest process with the over-dispersion of production traces.
    """

    kind: Literal["mmpp"] = "mmpp"
    rate: Rate = Field(4.0, description="requests per second while calm")
    burst_rate: Rate = Field(20.0, description="requests per second in a burst")
    calm_s: Spell = Field(40.0, description="mean length of a calm spell")
    burst_s: Spell = Field(20.0, description="mean length of a burst")

    def times_s(self, rng: np.random.Generator, duration_s: float, requests: float) -> Floats:
        """Return the arrivals, one spell of calm or burst after the other."""
        now_s, bursting, found = 0.0, False, 0
        spells: list[Floats] = []
        while now_s < duration_s and found < requests:
            length_s = rng.exponential(self.burst_s if bursting else self.calm_s)
            expected = (self.burst_rate if bursting else self.rate) * length_s
            check_size(found + expected, len(spells))
            count = rng.poisson(expected)
            spells.append(now_s + np.sort(rng.uniform(0, length_s, count)))
            now_s, bursting, found = now_s + length_s, not bursting, found + count
        return cut(np.concatenate(spells), duration_s, requests)


class Ramp(_Process):
    """Poisson arrivals whose rate goes from `rate` to `to_rate` in a straight line over the phase's duration."""

    kind: Literal["ramp"] = "ramp"
    rate: float = Field(ge=0, le=LARGEST, description="requests per second at the start")
    to_rate: float = Field(ge=0, le=LARGEST, description="requests per second at the end")

    def times_s(self, rng: np.random.Generator, duration_s: float, requests: float) -> Floats:
        """Return the arrivals: unit-rate arrivals, moved by the inverse of the expected count so far."""
        expected = duration_s * (self.rate + self.to_rate) / 2
        check_size(expected)
        so_far = np.sort(rng.uniform(0, expected, rng.poisson(expected)))
        bend = 2 * (self.to_rate - self.rate) / duration_s
        root = np.sqrt(np.maximum(self.rate**2 + bend * so_far, 0))
        return cut(2 * so_far / (self.rate + root), duration_s, requests)


class Closed(_Process):
    """A closed loop: each of `clients` sends its next request `think_s` after it got the last answer."""

    kind: Literal["closed"] = "closed"
    clients: int = Field(ge=1, description="clients, all of which start at once")
    requests_each: int = Field(ge=1, description="requests of one client")
    think_s: Draw = Field(Fixed(value=0.0), description="seconds between an answer and the next request")

    def times_s(self, rng: np.random.Generator, duration_s: float, requests: float) -> Floats:
        """Return the starts of the clients."""
        check_size(self.clients * self.requests_each)
        return np.zeros(self.clients)


Arrivals = Annotated[Constant | Poisson | Gamma | Mmpp | Ramp | Closed, Field(discriminator="kind")]
"""An arrival process in a workload file."""


def renewal(gaps_s: Callable[[int], Floats], rate: float, duration_s: float, requests: float) -> Floats:
    """Return the times of a process with gaps drawn by `gaps_s(count)`, whose mean is 1/rate."""
    now_s, found = 0.0, 0
    pieces: list[Floats] = [np.empty(0)]
    check_size(min(requests, duration_s * rate))
    while now_s < duration_s and found < requests:
        check_size(found, len(pieces))
        wanted = min(requests - found, (duration_s - now_s) * rate * 1.05 + 100)
        pieces.append(now_s + np.cumsum(gaps_s(int(min(wanted, 1_000_000)))))
        now_s, found = float(pieces[-1][-1]), found + len(pieces[-1])
    return cut(np.concatenate(pieces), duration_s, requests)


def cut(times_s: Floats, duration_s: float, requests: float) -> Floats:
    """Return the times below `duration_s`, at most `requests` of them."""
    inside = times_s[: np.searchsorted(times_s, duration_s)]
    return inside if requests == float("inf") else inside[: int(requests)]


def check_size(arrivals: float, spells: int = 0) -> None:
    """Raise TraceError for a workload that is too large to generate."""
    if arrivals > MOST or spells > MOST_SPELLS:
        raise TraceError(
            f"a workload of more than {MOST:,} requests or {MOST_SPELLS:,} spells; make it shorter, or its rate lower"
        )
