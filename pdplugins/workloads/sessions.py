"""Readers of published data without arrival times: sessions of agents, and lists of lengths.

The missing arrival times are drawn from a seed, as Poisson arrivals with `rate` per second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pdplugins.workloads import rows
from pdplugins.workloads.arrivals import Rate
from pdplugins.workloads.draws import Draw, Exponential
from pdplugins.workloads.trace import Round, TraceRequest

AGENTIC_COLUMNS = ("session", "round", "t_s", "input_tokens", "output_tokens", "session_cached_tokens")
TAUBENCH_COLUMNS = ("session", "round", "input_tokens_est", "output_tokens_est")
VIDUR_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


class _Drawn(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    seed: int = Field(0, ge=0, description="same seed, same bytes")


class AgenticSettings(_Drawn):
    """How the sessions of an agentic trace arrive."""

    rate: Rate = Field(0.1, description="sessions per second")
    sessions: int | None = Field(None, ge=1, description="keep the first so many sessions")
    max_gap_s: float = Field(600.0, ge=0, description="longer pauses between two rounds become this")


class TauBenchSettings(_Drawn):
    """How the sessions of a tau-bench file arrive, and how long its tools and users take."""

    rate: Rate = Field(0.5, description="sessions per second")
    sessions: int | None = Field(None, ge=1, description="keep the first so many sessions")
    gap_s: Draw = Field(Exponential(mean=5.0), description="seconds between an answer and the next round")


class VidurSettings(_Drawn):
    """How the requests of a list of lengths arrive."""

    rate: Rate = Field(4.0, description="requests per second")


def agentic_csv(settings: AgenticSettings, path: Path) -> Iterator[TraceRequest]:
    """Read the rounds of agents' sessions (callanjfox/kv-cache-tester, as one row a round).

    The history of a round is the part that the file counts as cached in its session. The rest of its prompt is new,
    earlier answers included. Where an agent compacted its conversation, the prompt becomes shorter. The gap before a
    round is the time between the two rounds in the file, at most `max_gap_s`. It includes the time of the answer.
    """
    starts = _starts_s(settings)
    session: list[tuple[float, int, int, int]] = []
    number_of, before = 0, None
    for number, (name, index, t_s, isl, osl, cached) in rows.cells(path, AGENTIC_COLUMNS, "an agentic trace"):
        first = _begins(path, number, AGENTIC_COLUMNS[0], index, name, before)
        before = name
        if first and session:
            yield _agent(settings, session, number_of, next(starts))
            session, number_of = [], number_of + 1
            if number_of == settings.sessions:
                return
        prompt = rows.tokens(path, number, "input_tokens", isl)
        history = min(rows.tokens(path, number, "session_cached_tokens", cached, least=0), prompt - 1)
        # A round that only calls a tool may have no visible output, but it decodes at least one token.
        answer = max(rows.tokens(path, number, "output_tokens", osl, least=0), 1)
        session.append((rows.real(path, number, "t_s", t_s), history, prompt - history, answer))
    if session:
        yield _agent(settings, session, number_of, next(starts))


def _begins(path: Path, number: int, column: str, index: str, name: str, before: str | None) -> bool:
    """Tell whether a row begins a session. Raises TraceError for a later round that does not follow one of its own."""
    first = rows.tokens(path, number, "round", index, least=0) == 0
    if not first and name != before:
        raise rows.malformed(path, number, column, name, "that of the row before, as rounds of a session come together")
    return first


def _agent(
    settings: AgenticSettings, session: list[tuple[float, int, int, int]], number: int, start_s: float
) -> TraceRequest:
    rounds, last_s = [], session[0][0]
    for t_s, history, new, osl in session[1:]:
        gap_s = min(max(t_s - last_s, 0.0), settings.max_gap_s)
        rounds.append(Round(round(gap_s, 6), new, osl, history))
        last_s = t_s
    _, cached, new, osl = session[0]
    return TraceRequest(start_s, cached + new, osl, session=f"s{number}", rounds=tuple(rounds))


def taubench_csv(settings: TauBenchSettings, path: Path) -> Iterator[TraceRequest]:
    """Read the rounds of tau-bench trajectories (sierra-research/tau-bench, as one row a round, lengths estimated).

    Each prompt repeats the conversation so far. The rest of it is new.
    """
    starts, rng = _starts_s(settings), np.random.default_rng((settings.seed, 1))
    session: list[tuple[int, int]] = []
    number_of, before = 0, None
    for number, (name, index, isl, osl) in rows.cells(path, TAUBENCH_COLUMNS, "a tau-bench trace"):
        first = _begins(path, number, TAUBENCH_COLUMNS[0], index, name, before)
        before = name
        if first and session:
            yield _dialogue(settings, session, number_of, next(starts), rng)
            session, number_of = [], number_of + 1
            if number_of == settings.sessions:
                return
        answer = max(rows.tokens(path, number, "output_tokens_est", osl, least=0), 1)
        session.append((rows.tokens(path, number, "input_tokens_est", isl), answer))
    if session:
        yield _dialogue(settings, session, number_of, next(starts), rng)


def _dialogue(
    settings: TauBenchSettings, session: list[tuple[int, int]], number: int, start_s: float, rng: np.random.Generator
) -> TraceRequest:
    (isl, osl), rounds = session[0], []
    so_far = isl + osl
    gaps_s = settings.gap_s.draw(rng, len(session) - 1).tolist()
    for gap_s, (prompt, answer) in zip(gaps_s, session[1:], strict=True):
        new = max(prompt - so_far, 1)
        rounds.append(Round(round(gap_s, 6), new, answer))
        so_far += new + answer
    return TraceRequest(start_s, isl, osl, session=f"s{number}", rounds=tuple(rounds))


def vidur_csv(settings: VidurSettings, path: Path) -> Iterator[TraceRequest]:
    """Read prompt and output lengths (microsoft/vidur, processed traces); requests arrive in the order of the file."""
    starts = _starts_s(settings)
    for number, (isl, osl) in rows.cells(path, VIDUR_COLUMNS, "a Vidur trace"):
        yield TraceRequest(
            next(starts),
            rows.tokens(path, number, "num_prefill_tokens", isl),
            max(rows.tokens(path, number, "num_decode_tokens", osl, least=0), 1),
        )


def _starts_s(settings: AgenticSettings | TauBenchSettings | VidurSettings) -> Iterator[float]:
    rng = np.random.default_rng(settings.seed)
    now_s = 0.0
    while True:
        for gap_s in rng.exponential(1 / settings.rate, 1024).tolist():
            now_s += gap_s
            yield now_s
