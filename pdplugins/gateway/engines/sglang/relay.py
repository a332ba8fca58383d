"""Passes SGLang's answers on to the client: bytes as they come, unless several workers give parts of one answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any

from pdplugins.gateway.backends import Backend
from pdplugins.gateway.engine import Client
from pdplugins.gateway.engines.sglang.calls import Call
from pdplugins.gateway.engines.sglang.forms import Converter
from pdplugins.gateway.engines.sglang.protocol import (
    DONE,
    DONE_EVENT,
    EVENT_END,
    EVENT_START,
    GENERATE,
    OddAnswerError,
    dumps,
    events,
    generated,
    joined,
    meta_of,
    whole,
)
from pdplugins.gateway.engines.sglang.seams import BROKEN, MOST_TOKENS, Seam
from pdplugins.gateway.engines.sglang.upstream import Answer
from pdplugins.gateway.errors import WorkerFailedError

_USAGE = {
    name: re.compile(rb'"%s":\s*(\d{1,12})(?!\d)' % name.encode()) for name in ("prompt_tokens", "completion_tokens")
}

PROMPT_LOGPROBS = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")

WorkerTexts = Callable[[Backend, Sequence[Sequence[int]]], Awaitable[list[str] | None]]
"""Asks a worker for the text of each list of token ids; None where it does not tell."""


class Relay:
    """Passes one answer on, and remembers what the client has got, so that another worker can go on from there.

    :param texts: for the text where another worker goes on.
    :param incremental: whether events of a stream hold new text only; None for what the first worker does.
    """

    def __init__(
        self,
        call: Call,
        client: Client,
        on_tokens: Callable[[int], None],
        texts: WorkerTexts,
        *,
        incremental: bool | None = None,
    ) -> None:
        self._call = call
        self._client = client
        self._on_tokens = on_tokens
        self._texts = texts
        self._head = False
        self._asked = incremental
        self._incremental = False
        """Whether the events that the client gets hold new tokens only."""
        self._answer: Answer | None = None
        self._part: list[bytes] = []
        """What this worker has said: its last events, or all of them where each one holds new tokens only."""
        self.ids: list[int] = []
        """Tokens of the workers before."""
        self._text = ""
        """Text of the workers before, and between them."""
        self._seam: Seam | None = None
        """What may be missing in the text before that of this worker."""
        self._owed = ""
        """Where each event holds new text only: what the client has not got yet."""
        self._versions: list[dict[str, Any]] = []
        """Which weights gave the tokens of the workers before."""
        self._prompt_logprobs: dict[str, list[Any]] = {}

    @property
    def speaking(self) -> bool:
        """Whether the client has got tokens of the worker that answers now."""
        return bool(self._part)

    @property
    def delivered_tokens(self) -> int:
        """Output tokens that the client has got in all."""
        if not self._client.started:
            return 0
        now = self._answer.tokens if self._answer is not None and self._part else 0
        return len(self.ids) + now

    async def run(self, answer: Answer, *, head: bool = False) -> bool:
        """Pass on what a worker says. With `head` another one goes on. Return whether the answer is whole."""
        self._answer = answer
        self._head = head
        self._owed = ""
        convert = self._form(answer)
        self._part = []
        kept = told = 0
        rewrite = head or bool(self.ids) or self._merges(answer)
        own, given = answer.rid.encode(), dumps(self._call.rid)[1:-1]
        most = answer.most_bytes // len(given)
        while piece := (await answer.piece()).replace(own, given, most):
            if convert is not None:
                piece = self._bounded(convert(piece))
            if not self._part or (self._incremental and piece != DONE_EVENT):
                self._part.append(piece)
                kept += len(piece)
                if kept > answer.most_bytes:
                    raise WorkerFailedError(answer.backend.id, "an answer that does not end")
            elif piece != DONE_EVENT:
                self._part[-1] = piece
            if answer.tokens > told:
                self._on_tokens(answer.tokens - told)
                told = answer.tokens
            if self._seam is not None:
                await self._close(self._seam, answer)
            if rewrite and answer.refused is None:
                piece = self._rewritten(piece)
            await self._pass_on(answer, piece, hold=head and not answer.stream and not self._ends())
        return not head or self._ends()

    def _form(self, answer: Answer) -> Converter | None:
        """Set the form of the events that the client gets. Return what converts this worker's; None where it has it."""
        if not answer.stream or self._call.path != GENERATE:
            self._incremental = False
            return None
        own = answer.backend.incremental
        if self._asked is not None:
            self._incremental = self._asked
        elif not self._client.started:
            self._incremental = own
        return None if own == self._incremental else Converter(incremental=self._incremental)

    async def _pass_on(self, answer: Answer, piece: bytes, *, hold: bool) -> None:
        if answer.stream:
            if piece:
                await self._client.send(piece, answer.content_type)
        elif not hold:
            await self._client.whole(piece, answer.content_type)

    async def close(self) -> bool:
        """End a stream of which only the end mark is missing. Return whether that was so."""
        if not self._client.started or self._call.path != GENERATE or not self._ends():
            return False
        await self._client.send(DONE_EVENT, "")
        return True

    def fold(self) -> None:
        """Keep what this worker has said, with what those before have said: another one goes on."""
        said = self._events()
        if said:
            self._versions = joined(self._versions, meta_of(said[-1]).get("weight_versions") or (), len(self.ids))
        new = said if self._incremental else said[-1:]
        self.ids = [*self.ids, *_ids_of(new)]
        broken = None
        if self._seam is None:
            text = self._text + "".join(event.get("text") or "" for event in new)
            ended = self._head and _ended(said)
            self._text = text.rstrip(BROKEN) if ended else text
            broken = len(text) - len(self._text) if ended else None
        self._seam = Seam(self.ids, self._text, broken) if self.ids and broken != 0 else None
        self._part = []

    def usage(self, name: str) -> int | None:
        """Return ``prompt_tokens`` or ``completion_tokens`` as the worker counted them at the end; None if it did not.

        Of several answers to ``/generate`` each one has its own, and a stream tells those of one only.
        """
        found = [int(number) for number in _USAGE[name].findall(self._part[-1])] if self._part else []
        if not found or self._call.path != GENERATE or self._call.one_answer:
            return found[-1] if found else None
        if self._answer is None or self._answer.stream:
            return None
        return sum(found) // (self._call.answers if name == "prompt_tokens" else 1)

    async def _close(self, seam: Seam, answer: Answer) -> None:
        """Find the text at which this worker goes on, if its tokens so far tell it.

        That reads all that it has said anew. So a worker whose events hold no tokens is not waited for.
        """
        said = self._events()
        new = _ids_of(said if self._incremental else said[-1:])
        last = _ended(said) or len(self._part) >= 2 * MOST_TOKENS
        between = await seam.close(new, partial(self._texts, answer.backend), last=last)
        if between is not None:
            self._text += between
            self._owed = between + self._owed
            self._seam = None

    # --- parts -----------------------------------------------------------------------------------------------------

    def _events(self) -> list[dict[str, Any]]:
        every = [event for piece in self._part for event in events(piece) if event != DONE]
        return [data for event in every if (data := self._generated(event)) is not None]

    def _generated(self, event: bytes) -> dict[str, Any] | None:
        """Read one event. Raises WorkerFailedError for an odd one."""
        try:
            return generated(event)
        except OddAnswerError as odd:
            assert self._answer is not None  # noqa: S101 - it has said this
            raise WorkerFailedError(self._answer.backend.id, str(odd)) from None

    def _ends(self) -> bool:
        """Tell whether the last event of this part ends the whole answer."""
        said = self._events()
        meta = meta_of(said[-1]) if said else {}
        reason = meta.get("finish_reason")
        if not isinstance(reason, dict):
            return False
        done = len(self.ids) + int(meta.get("completion_tokens") or 0)
        return reason.get("type") != "length" or done >= (self._call.max_tokens or 0)

    def _rewritten(self, piece: bytes) -> bytes:
        if not piece.startswith(EVENT_START):
            data = self._generated(piece)
            return piece if data is None else dumps(self._whole(data))
        said = [DONE_EVENT if event == DONE else self._generated(event) for event in events(piece)]
        every = [event for event in said if event is not None]
        if not self._incremental:  # each one holds all so far, so the last one before the end is enough
            every = [event for event, then in pairwise([*every, DONE_EVENT]) if DONE_EVENT in (event, then)]
        return self._bounded(map(self._rewritten_event, every))

    def _rewritten_event(self, said: dict[str, Any] | bytes) -> bytes:
        if isinstance(said, bytes):
            return b"" if self._head and not self._ends() else said
        return EVENT_START + dumps(self._whole(said)) + EVENT_END

    def _bounded(self, parts: Iterable[bytes]) -> bytes:
        """Return the events of a piece in another form, in which each one may be as long as all so far.

        Raises WorkerFailedError for more than a whole answer may have.
        """
        assert self._answer is not None  # noqa: S101 - it has said this
        left, kept = self._answer.most_bytes, list[bytes]()
        for part in parts:
            left -= len(part)
            if left < 0:
                raise WorkerFailedError(self._answer.backend.id, "an answer that does not end")
            kept.append(part)
        return b"".join(kept)

    def _whole(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return an event as if one worker had said all so far."""
        before = len(self.ids)
        meta = data["meta_info"] = data.get("meta_info") or {}
        reason = meta.get("finish_reason")
        meta["id"] = self._call.rid
        meta["completion_tokens"] = whole(meta.get("completion_tokens")) + before
        meta["prompt_tokens"] = whole(meta.get("prompt_tokens")) - before
        if isinstance(reason, dict) and reason.get("type") == "length":
            most = self._call.max_tokens or 0
            ends = meta["completion_tokens"] >= most
            goes_on = self._head and not ends
            meta["finish_reason"] = None if goes_on else {**reason, "length": meta["completion_tokens"]}
            if goes_on:  # the next worker's tokens may make a character of it
                data["text"] = (data.get("text") or "").rstrip(BROKEN)
        meta.update(self._prompt_logprobs)
        if before and "weight_versions" in meta:
            meta["weight_versions"] = joined(self._versions, meta["weight_versions"] or (), before)
        if before:
            data["text"] = self._told(data.get("text") or "")
        if before and not self._incremental:
            data["output_ids"] = self.ids + (data.get("output_ids") or [])
        return data

    def _told(self, text: str) -> str:
        """Return the text of an event for the client, given that of this worker. It waits for a seam to close."""
        if not self._incremental:
            return self._text + (text if self._seam is None else "")
        self._owed += text
        if self._seam is not None:
            return ""
        told, self._owed = self._owed, ""
        return told

    def _merges(self, answer: Answer) -> bool:
        """Take over the prompt's logprobs, which only the worker that prefilled has; tell whether there are any."""
        if not (self._call.fields.get("return_logprob") and answer.prefill_reply):
            return False
        first = next(iter(events(answer.prefill_reply)), b"")
        meta = meta_of(self._generated(first) or {})
        self._prompt_logprobs = {name: value for name in PROMPT_LOGPROBS if isinstance(value := meta.get(name), list)}
        return bool(self._prompt_logprobs)


def _ids_of(said: Sequence[dict[str, Any]]) -> list[int]:
    return list(chain.from_iterable(event.get("output_ids") or () for event in said))


def _ended(said: Sequence[dict[str, Any]]) -> bool:
    """Tell whether a worker has said all that it was asked for."""
    return bool(said) and isinstance(meta_of(said[-1]).get("finish_reason"), dict)
