"""One request of a trace, or one session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdplugins.contracts.request import Terms


@dataclass(frozen=True, slots=True)
class Round:
    """A later round of a session. It arrives `gap_s` after the previous answer: the time of a tool or a person."""

    gap_s: float
    new_tokens: int
    """Tokens of the prompt beyond its history."""
    osl_tokens: int
    history_tokens: int | None = None
    """Leading tokens of the conversation so far that the prompt repeats. None means all of it, including the last
    answer. 0 means nothing, as for a client that asks unrelated questions."""

    def history(self, so_far_tokens: int) -> int:
        """Return the tokens of history in the prompt, after a conversation of `so_far_tokens`."""
        return so_far_tokens if self.history_tokens is None else min(self.history_tokens, so_far_tokens)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace, or one session, whose first round is this request."""

    arrival_s: float
    """Seconds since the first request of the trace."""
    isl_tokens: int
    osl_tokens: int
    blocks: tuple[int, ...] = ()
    """Hashes of the prompt's blocks, if the trace has them (Mooncake: 512 tokens each)."""
    session: str | None = None
    rounds: tuple[Round, ...] = ()
    """The rounds of the session after this one. Each waits for the answer before it (closed loop)."""
    terms: Terms | None = None
    """What it asks for itself, every round of it; None where it asks for nothing."""

    def turns(self) -> Iterator[tuple[int, int, int]]:
        """Yield (history, prompt, output) in tokens of every round, the first one included."""
        yield 0, self.isl_tokens, self.osl_tokens
        so_far = self.isl_tokens + self.osl_tokens
        for later in self.rounds:
            history = later.history(so_far)
            yield history, history + later.new_tokens, later.osl_tokens
            so_far = history + later.new_tokens + later.osl_tokens
