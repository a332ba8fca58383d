"""Completions that begin on one worker and end on another: `/generate` serves them, since its streams tell token ids.

Only plain completions, whose fields mean the same there; SGLang's own server maps them in the same way. Those that one
worker, or a pair, answers stay on `/v1/completions`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from pdplugins.gateway.calls import COMPLETIONS, DEFAULT_TOKENS, Call
from pdplugins.gateway.engines.sglang.protocol import (
    DONE,
    DONE_EVENT,
    EVENT_END,
    EVENT_START,
    GENERATE,
    dumps,
    events,
    parsed,
)
from pdplugins.gateway.streams import Client

SAMPLING = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "ignore_eos", "stop_token_ids")},
    **{name: name for name in ("skip_special_tokens", "no_stop_trim")},
    "max_tokens": "max_new_tokens",
    "seed": "sampling_seed",
    "min_tokens": "min_new_tokens",
}
PLAIN = SAMPLING.keys() | {"model", "prompt", "stream", "stream_options", "user", "rid", "n", "session_id", "priority"}


def splittable(call: Call) -> bool:
    """Tell whether an answer can begin on one worker and end on another."""
    return call.continuable or as_generate(call) is not None


def as_generate(call: Call) -> Call | None:
    """Return a completion as the same request to `/generate`; None when it is no completion, or not a plain one."""
    if call.path != COMPLETIONS or not call.fields.keys() <= PLAIN or call.fields.get("n", 1) != 1:
        return None
    prompt = call.prompt
    if prompt is None:
        return None
    given = {SAMPLING[name]: value for name, value in call.fields.items() if name in SAMPLING and value is not None}
    fields = {
        "input_ids" if isinstance(prompt, list) else "text": prompt,
        "sampling_params": {"max_new_tokens": DEFAULT_TOKENS[COMPLETIONS], **given},
        "stream": call.stream,
    }
    if "priority" in call.fields:
        fields["priority"] = call.fields["priority"]
    return replace(call, path=GENERATE, body=dumps(fields), fields=fields)


class CompletionsReply:
    """Gives the client a completion for what `/generate` says.

    :param incremental: events hold new text only, and not all so far.
    """

    def __init__(self, reply: Client, call: Call, *, incremental: bool) -> None:
        self._reply = reply
        self._incremental = incremental
        self._shown = 0
        self._usage: dict[str, int] = {}
        options = call.fields.get("stream_options")
        self._tells_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._frame = {"id": call.rid, "object": "text_completion", "created": int(time.time())}
        self._frame["model"] = call.fields.get("model", "default")

    @property
    def started(self) -> bool:
        """Whether the client has got anything."""
        return self._reply.started

    async def send(self, data: bytes, content_type: str) -> None:
        """Send the part of a stream that `data` is."""
        await self._reply.send(b"".join(self._event(event) for event in events(data)), content_type)

    def whole(self, body: bytes, content_type: str) -> None:
        """Answer with one body."""
        said = parsed(body)
        if said is not None and "output_ids" in said:
            body = dumps({**self._frame, "choices": [self._choice(said, said["text"])], "usage": self._usage})
        self._reply.whole(body, content_type)

    def _event(self, event: bytes) -> bytes:
        if event == DONE:
            last = {**self._frame, "choices": [], "usage": self._usage}
            return (EVENT_START + dumps(last) + EVENT_END if self._tells_usage else b"") + DONE_EVENT
        said = parsed(event)
        if said is None or "output_ids" not in said:
            return event + EVENT_END
        text = said["text"] if self._incremental else said["text"][self._shown :]
        self._shown += len(text)
        return EVENT_START + dumps({**self._frame, "choices": [self._choice(said, text)]}) + EVENT_END

    def _choice(self, said: dict[str, Any], text: str) -> dict[str, Any]:
        meta = said["meta_info"]
        prompt, output = int(meta.get("prompt_tokens") or 0), int(meta.get("completion_tokens") or 0)
        self._usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        reason = meta.get("finish_reason") or {}
        ended = {"finish_reason": reason.get("type"), "matched_stop": reason.get("matched")}
        return {"index": 0, "text": text, "logprobs": None, **ended}
