"""Sessions: where the KV cache of a conversation is, so that its next round can go there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Session:
    """One conversation."""

    bound_worker: str | None = None
    """Where its last answer was decoded."""
    tokens: int = 0
    """Prompt and answer of its last round."""
    prefix: tuple[int, int] = (0, 0)
    """Prefix blocks of that prompt: how many, and the hash of the last one, which stands for all of them."""
    held: dict[str, int] = field(default_factory=dict)
    """Worker to the leading tokens of the conversation whose KV cache it was given."""

    def history(self, prompt_tokens: int, blocks: tuple[int, ...]) -> int:
        """Return the leading tokens of a new prompt that earlier rounds have computed: none when it is another text."""
        count, last = self.prefix
        if count and (len(blocks) < count or blocks[count - 1] != last):
            return 0
        return max(min(self.tokens, prompt_tokens - 1), 0)


class Sessions:
    """The conversations that had answers, by name. The one that was used least lately is forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.on_change: Callable[[str, Session], None] | None = None
        """Is called with the name of a session that has had another round."""

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, name: str | None) -> Session | None:
        """Return the session called `name`; None when there is none."""
        return None if name is None else self._sessions.get(name)

    def remember(self, name: str) -> Session:
        """Return the session called `name`, a new one when there is none."""
        session = self._sessions.setdefault(name, Session())
        self._touch(name)
        return session

    def lost(self, worker: str) -> None:
        """Forget what a worker has held: it may come back without."""
        for session in self._sessions.values():
            session.held.pop(worker, None)
            if session.bound_worker == worker:
                session.bound_worker = None

    def changed(self, name: str, session: Session) -> None:
        """Note that a session has had another round here."""
        if self.on_change is not None:
            self.on_change(name, session)

    def put(self, name: str, session: Session) -> None:
        """Take in a session that has had another round elsewhere."""
        self._sessions[name] = session
        self._touch(name)

    def _touch(self, name: str) -> None:
        self._sessions.move_to_end(name)
        if len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
