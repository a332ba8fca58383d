"""The two forms of a stream of ``/generate``: each event holds all so far, or only what is new.

A server has one of them (``--incremental-streaming-output``). Where servers of both give parts of one answer, the
client gets the form of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pdplugins.gateway.engines.sglang.protocol import EVENT_END, EVENT_START, dumps, events, parsed


class Converter:
    """Makes a stream incremental that is not, or the other way round.

    :param incremental: whether its events shall hold only what is new.
    """

    def __init__(self, *, incremental: bool) -> None:
        self._incremental = incremental
        self._text, self._ids = "", list[int]()
        """All so far."""

    def __call__(self, piece: bytes) -> Iterator[bytes]:
        """Yield whole events in the other form. What is no answer, such as an error, stays.

        Of several that would hold all so far, the last one is enough.
        """
        held: dict[str, Any] | None = None
        new: list[str] = []
        for event in events(piece):
            data = parsed(event)
            if data is None or not isinstance(ids := data.get("output_ids"), list):
                yield from self._all_so_far(held, new)
                held = None
                yield event + EVENT_END
                continue
            text = said if isinstance(said := data.get("text"), str) else ""
            if self._incremental:
                data["text"], data["output_ids"] = text[len(self._text) :], ids[len(self._ids) :]
                self._text, self._ids = text, ids
                yield EVENT_START + dumps(data) + EVENT_END
            else:
                held = data
                new.append(text)
                self._ids += ids
        yield from self._all_so_far(held, new)

    def _all_so_far(self, held: dict[str, Any] | None, new: list[str]) -> Iterator[bytes]:
        """Yield the event `held`, if there is one, with all so far. Takes the text that is `new`, and empties it."""
        if held is None:
            return
        self._text = "".join((self._text, *new))
        new.clear()
        yield EVENT_START + dumps({**held, "text": self._text, "output_ids": self._ids}) + EVENT_END
