"""One request of a client: what the gateway has to know of it, and its body, which it does not touch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdplugins.gateway.engines.sglang.protocol import BOOTSTRAP_FIELDS, GENERATE, loads, splice
from pdplugins.gateway.errors import GatewayError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BLOCK_TOKENS = 512
"""Tokens of one prefix block, as in traces and policies."""
CHARS_PER_TOKEN = 4
"""Length of a token of text, to cut text into blocks and until answers have told better."""
SESSION_FIELDS = ("session_id", "user")
DEFAULT_TOKENS = {GENERATE: 128, COMPLETIONS: 16}
"""Output tokens of a request that does not say: SGLang's defaults."""

SPLITTABLE = frozenset(
    {"text", "input_ids", "sampling_params", "stream", "rid", "model", "session_id", "user", "priority", "extra_key"}
    | {"lora_path", "return_logprob"}
)
SPLITTABLE_SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_new_tokens", "min_new_tokens", "ignore_eos", "stop_token_ids"}
    | {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "n", "sampling_seed"}
)
"""Fields with which the rest of an answer depends on nothing but the tokens so far, so another worker may go on: also
what is drawn; with a seed, which SGLang heeds where it runs deterministically, also on the position."""


@dataclass(slots=True)
class Call:
    """One request of a client."""

    path: str
    body: bytes
    fields: Mapping[str, Any]
    rid: str
    session: str | None
    headers: Mapping[str, str]

    @property
    def stream(self) -> bool:
        """Whether the client wants the answer token by token."""
        return bool(self.fields.get("stream"))

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Sampling parameters, wherever this API has them."""
        if self.path != GENERATE:
            return self.fields
        params = self.fields.get("sampling_params")
        return params if isinstance(params, dict) else {}

    @property
    def prompt(self) -> list[int] | str | None:
        """Token ids or text of the prompt; None for a batch, and for a chat, whose template only workers know."""
        fields = self.fields
        ids = fields.get("prompt" if self.path == COMPLETIONS else "input_ids")
        if isinstance(ids, list) and ids and isinstance(ids[0], int):
            return ids
        text = fields.get("prompt" if self.path == COMPLETIONS else "text")
        return text if isinstance(text, str) else None

    @property
    def batch(self) -> int | None:
        """Number of prompts of a batch; None for a single prompt."""
        names = ("prompt",) if self.path == COMPLETIONS else ("input_ids", "text")
        for name in names:
            value = self.fields.get(name)
            if isinstance(value, list) and value and not isinstance(value[0], int):
                return len(value)
        return None

    @property
    def max_tokens(self) -> int | None:
        """Output tokens that the client allows; None when the model's context is the only limit."""
        sampling = self.sampling
        names = ("max_new_tokens",) if self.path == GENERATE else ("max_completion_tokens", "max_tokens")
        for name in names:
            if isinstance(value := sampling.get(name), int):
                return value
        return DEFAULT_TOKENS.get(self.path)

    @property
    def pinned_tokens(self) -> int | None:
        """Output tokens where the request itself fixes them; None where only the answer will tell."""
        sampling, most = self.sampling, self.max_tokens
        least = sampling.get("min_new_tokens" if self.path == GENERATE else "min_tokens")
        stops = sampling.get("stop") or sampling.get("stop_token_ids")
        return most if least == most or (sampling.get("ignore_eos") and not stops) else None

    @property
    def continuable(self) -> bool:
        """Whether another worker can go on in the middle of the answer, given the tokens so far."""
        if self.path != GENERATE or self.batch is not None or self.fields.get("return_logprob"):
            return False
        sampling = self.sampling
        return self.fields.keys() <= SPLITTABLE and sampling.keys() <= SPLITTABLE_SAMPLING and sampling.get("n", 1) == 1

    def limited(self, tokens: int) -> dict[str, Any]:
        """Return the fields that make the answer at most `tokens` long."""
        if self.path != GENERATE:
            return {"max_tokens": tokens, "max_completion_tokens": tokens, "min_tokens": 0}
        least = self.sampling.get("min_new_tokens")
        params = {**self.sampling, "max_new_tokens": tokens}
        return {"sampling_params": params | ({"min_new_tokens": min(least, tokens)} if isinstance(least, int) else {})}

    def prefill_only(self) -> dict[str, Any]:
        """Return the fields that make a worker compute the prompt and no more than one token."""
        return {**self.limited(1), "stream": False, "n": 1} if self.path != GENERATE else self._one_token()

    def continued(self, ids: list[int], done: int) -> bytes:
        """Return the request for the rest of the answer: `ids` are the prompt and the `done` tokens so far."""
        sampling = dict(self.sampling)
        sampling["max_new_tokens"] = (self.max_tokens or 0) - done
        if isinstance(least := sampling.get("min_new_tokens"), int):
            sampling["min_new_tokens"] = max(least - done, 0)
        kept = {key: value for key, value in self.fields.items() if key not in ("text", "input_ids", "sampling_params")}
        return json.dumps({**kept, "input_ids": ids, "sampling_params": sampling}).encode()

    def _one_token(self) -> dict[str, Any]:
        params = {**self.sampling, "max_new_tokens": 1, "min_new_tokens": 0, "n": 1}
        return {"sampling_params": params, "stream": False}


def parse(
    path: str, body: bytes, rid: str, session: str | None = None, headers: Mapping[str, str] | None = None
) -> Call:
    """Read what there is to know of a request. Raises GatewayError for what is not a JSON object.

    :param rid: its name where the client gives none.
    :param session: its session where a header names one; else a field of the body may.
    :param headers: what the workers are to get of the client's headers.
    """
    try:
        fields = loads(body)
    except ValueError:
        raise GatewayError(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise GatewayError(400, "the body is not a JSON object")
    if own := [name for name in BOOTSTRAP_FIELDS if name in fields]:  # who is paired with whom is the gateway's affair
        body = splice(body, dict.fromkeys(own))
    given = fields.get("rid")
    if session is None:
        named = (fields.get(name) for name in SESSION_FIELDS)
        session = next((name for name in named if isinstance(name, str) and name), None)
    return Call(path, body, fields, given if isinstance(given, str) and given else rid, session, headers or {})


class Lengths:
    """Prompt lengths in tokens: exact for token ids; for text by the characters per token that answers have shown."""

    def __init__(self) -> None:
        self._chars_per_token = float(CHARS_PER_TOKEN)

    def prompt_tokens(self, call: Call) -> int:
        """Return the length of the prompt, or of all prompts of a batch."""
        prompt = call.prompt
        if isinstance(prompt, list):
            return len(prompt)
        return max(round(_chars(call) / self._chars_per_token), 1)

    def learn(self, call: Call, prompt_tokens: int) -> None:
        """Take in what a worker said of the length of the prompt of `call`."""
        if not isinstance(call.prompt, list) and prompt_tokens > 0 and (chars := _chars(call)):
            self._chars_per_token += 0.1 * (min(max(chars / prompt_tokens, 0.2), 50.0) - self._chars_per_token)


def _chars(call: Call) -> int:
    prompt = call.prompt
    return len(prompt) if isinstance(prompt, str) else len(call.body)


def blocks_of(call: Call) -> tuple[int, ...]:
    """Return the hashes of the whole blocks of the prompt; each one stands for all of the prompt up to its end."""
    prompt = call.prompt
    size = BLOCK_TOKENS if isinstance(prompt, list) else BLOCK_TOKENS * CHARS_PER_TOKEN
    if prompt is None:
        prompt = str(call.fields.get("messages", ""))
    hashes: list[int] = []
    before = 0
    for end in range(size, len(prompt) + 1, size):
        part = prompt[end - size : end]
        before = hash((before, tuple(part) if isinstance(part, list) else part))
        hashes.append(before)
    return tuple(hashes)
