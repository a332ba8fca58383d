"""Sessions: where the KV cache of a conversation is, so that its next round can go there."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

MOST = 100_000
"""Sessions that are remembered; the least recent one goes first."""


@dataclass(slots=True)
class Session:
    """One conversation."""

    bound_worker: str | None = None
    """Where its last answer was decoded."""
    tokens: int = 0
    """Prompt and answer of its last round."""
    blocks: tuple[int, ...] = ()
    """Prefix blocks of that prompt."""
    held: dict[str, int] = field(default_factory=dict)
    """Worker to the leading tokens of the conversation whose KV cache it was given."""

    def history(self, prompt_tokens: int, blocks: tuple[int, ...]) -> int:
        """Return the leading tokens of a new prompt that earlier rounds have computed: none when it is another text."""
        if blocks[: len(self.blocks)] != self.blocks:
            return 0
        return max(min(self.tokens, prompt_tokens - 1), 0)


class Sessions:
    """All conversations, by name."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, name: str | None) -> Session | None:
        """Return the session called `name`, a new one when there is none; None without a name."""
        if name is None:
            return None
        session = self._sessions.setdefault(name, Session())
        self._sessions.move_to_end(name)
        if len(self._sessions) > MOST:
            self._sessions.popitem(last=False)
        return session
