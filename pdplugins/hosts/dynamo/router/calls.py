"""One request as Dynamo's frontend hands it on, with its prompt as token ids, and the requests made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdplugins.contracts.request import Terms
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.names import hashed

OF_OUTPUT = ("presence_penalty", "frequency_penalty", "repetition_penalty")
"""Sampling options that look at the tokens of the answer so far, which are part of the prompt for whoever goes on."""
MOST_TOKENS = 2**31
"""Token counts beyond this one are no request."""


class PreprocessedCall:
    """A `pdplugins.gateway.engine.Call`. Raises GatewayError for what is not a request.

    :param body: Dynamo's ``PreprocessedRequest`` as plain data.
    :param context: Dynamo's context of the request.
    :param splits: whether engines move KV cache while both compute: then one may go on at any token of another one, and
        no two can give several answers.
    """

    path = ""
    headers: Mapping[str, str] = {}
    model: str | None = None
    """Dynamo's frontend has chosen this router by it."""
    stream = True
    messages = b""
    batch = None
    goes_on_elsewhere = "only one answer without a grammar can go on elsewhere"
    logprobs = False
    """Those of the prompt are not asked of the worker that prefills."""

    def __init__(self, body: Any, context: Any, *, splits: bool = False) -> None:
        ids = body.get("token_ids") if isinstance(body, dict) else None
        if not isinstance(ids, list) or not ids:
            raise GatewayError(400, "the request has no token ids: this model takes prompts as tokens only")
        self.body: dict[str, Any] = body
        self.context = context
        self.prompt: list[int] = ids
        self.rid: str = context.id()
        self.asks: Mapping[str, Any] = {"priority": _mapping(body, "routing").get("priority")}
        """Dynamo's frontend takes no fields of the body that it does not know."""
        self.terms: Terms | None = None
        self.prefilled: dict[str, Any] = {}
        """What the worker that has prefilled it said for the one that decodes, by the worker's id."""
        stop = _mapping(body, "stop_conditions")
        sampling = _mapping(body, "sampling_options")
        self.max_tokens = _count(stop.get("max_tokens"))
        self.pinned_tokens = self.max_tokens if stop.get("ignore_eos") else None
        self.one_answer = (sampling.get("n") or 1) == 1
        self.pushes = True
        """Whether KV cache that is computed ahead is where its prompt looks for it."""
        self.continuable = self.one_answer and sampling.get("guided_decoding") is None
        self.splits_in_decode = splits and self.continuable and not any(map(sampling.get, OF_OUTPUT))
        """Whether another worker can go on in the middle of its answer, with the same tokens as the first."""
        self.whole = "n" if splits and not self.one_answer else None
        """The field for which one worker has to serve all of it."""
        name = _mapping(body, "agent_context").get("session_id")
        self.session = hashed(name) if isinstance(name, str) and name else None

    @property
    def asking_headers(self) -> Mapping[str, str]:
        """What the client's headers `x-dynamo-meta-NAME` say, under `x-name`: Dynamo's frontend hands on no others."""
        return {f"x-{name}": value for name, value in self.context.metadata.items()}

    def limited(self, tokens: int) -> dict[str, Any]:
        """Return the request for at most `tokens` of the answer."""
        return self._with({"max_tokens": tokens})

    def prefill_only(self) -> dict[str, Any]:
        """Return the request that computes the prompt and one token."""
        return self._with({"max_tokens": 1, "min_tokens": None})

    def continued(self, ids: list[int], done: int) -> dict[str, Any]:
        """Return the request for the rest of the answer: `ids` are the prompt and the `done` tokens so far."""
        stop = _mapping(self.body, "stop_conditions")
        least = _count(stop.get("min_tokens"))
        return self._with(
            {
                "max_tokens": None if self.max_tokens is None else max(self.max_tokens - done, 1),
                "min_tokens": None if least is None else max(least - done, 0),
            },
            token_ids=ids,
        )

    def _with(self, stop: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {**self.body, **fields, "stop_conditions": {**_mapping(self.body, "stop_conditions"), **stop}}


def _mapping(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None
