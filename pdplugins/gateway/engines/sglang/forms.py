"""The two forms of a stream of ``/generate``: each event holds all so far, or only what is new.

A server has one of them (``--incremental-streaming-output``). Where servers of both give parts of one answer, the
client gets the form of the first.
"""

from __future__ import annotations

from pdplugins.gateway.engines.sglang.protocol import EVENT_END, EVENT_START, dumps, events, parsed


class Converter:
    """Makes a stream incremental that is not, or the other way round.

    :param incremental: whether its events shall hold only what is new.
    """

    def __init__(self, *, incremental: bool) -> None:
        self._incremental = incremental
        self._text, self._ids = "", list[int]()
        """All so far."""

    def __call__(self, piece: bytes) -> bytes:
        """Return whole events in the other form. What is no answer, such as an error, stays."""
        return b"".join(map(self._event, events(piece)))

    def _event(self, event: bytes) -> bytes:
        data = parsed(event)
        if data is None or not isinstance(ids := data.get("output_ids"), list):
            return event + EVENT_END
        text = said if isinstance(said := data.get("text"), str) else ""
        if self._incremental:
            data["text"], data["output_ids"] = text[len(self._text) :], ids[len(self._ids) :]
        else:
            text, ids = self._text + text, self._ids + ids
            data["text"], data["output_ids"] = text, ids
        self._text, self._ids = text, ids
        return EVENT_START + dumps(data) + EVENT_END
