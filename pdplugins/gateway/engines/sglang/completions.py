"""Completions that begin on one worker and end on another: `/generate` serves them, since its streams tell token ids.

That works for plain completions, whose fields mean the same there (`Call.as_generate`). Those that one worker or a pair
answers stay on `/v1/completions`.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from pdplugins.gateway.engine import Client
from pdplugins.gateway.engines.sglang.calls import Call
from pdplugins.gateway.engines.sglang.protocol import DONE, DONE_EVENT, EVENT_END, EVENT_START, dumps, events, parsed
from pdplugins.gateway.errors import RefusedError

WEIGHTS = ("weight_version", "weight_versions")
"""What is told of the weights in the metadata of a completion."""


class CompletionsReply:
    """Gives the client a completion for what `/generate` says.

    :param incremental: events hold new text only, and not all so far.
    """

    def __init__(self, reply: Client, call: Call, *, incremental: bool) -> None:
        self._reply = reply
        self.incremental = incremental
        self._shown = 0
        self._usage: dict[str, int | None] = {}
        options = call.fields.get("stream_options")
        self._tells_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._frame = {"id": call.rid, "object": "text_completion", "created": int(time.time())}
        self._frame["model"] = call.fields.get("model", "default")

    @property
    def started(self) -> bool:
        """Whether the client has got anything."""
        return self._reply.started

    async def send(self, data: bytes, content_type: str) -> None:
        """Send the part of a stream that `data` is. Raises RefusedError for a stream that begins with one."""
        every = events(data)
        if not every:  # empty lines
            return
        if not self._reply.started and isinstance((parsed(every[0]) or {}).get("error"), dict):
            raise RefusedError(HTTPStatus.BAD_REQUEST, data, content_type)
        await self._reply.send(b"".join(self._event(event) for event in every), content_type)

    async def whole(self, body: bytes, content_type: str) -> None:
        """Answer with one body."""
        said = parsed(body)
        if said is not None and "output_ids" in said:
            weights = {name: value for name, value in (said.get("meta_info") or {}).items() if name in WEIGHTS}
            choices = [self._choice(said, said.get("text") or "")]
            body = dumps({**self._frame, "choices": choices, "usage": self._usage, "metadata": weights})
        await self._reply.whole(body, content_type)

    def _event(self, event: bytes) -> bytes:
        if event == DONE:
            last = {**self._frame, "choices": [], "usage": self._usage}
            return (EVENT_START + dumps(last) + EVENT_END if self._tells_usage else b"") + DONE_EVENT
        said = parsed(event)
        if said is None or "error" in said or "output_ids" not in said:
            return event + EVENT_END
        text = said.get("text") or ""
        text = text if self.incremental else text[self._shown :]
        self._shown += len(text)
        return EVENT_START + dumps({**self._frame, "choices": [self._choice(said, text)]}) + EVENT_END

    def _choice(self, said: dict[str, Any], text: str) -> dict[str, Any]:
        meta = said.get("meta_info") or {}
        prompt, output = int(meta.get("prompt_tokens") or 0), int(meta.get("completion_tokens") or 0)
        self._usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        self._usage |= {"prompt_tokens_details": None, "reasoning_tokens": 0}
        reason = meta.get("finish_reason") or {}
        ended = {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}
        return {"index": 0, "text": text, "logprobs": None, **ended}
