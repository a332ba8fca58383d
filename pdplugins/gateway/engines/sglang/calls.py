"""One request of a client to SGLang's or OpenAI's API: what the gateway has to know of it, and its body."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pdplugins.contracts.request import Terms
from pdplugins.gateway.engines.sglang.fields import OURS, Fields
from pdplugins.gateway.engines.sglang.protocol import COMPLETIONS, GENERATE, LARGEST, dumps, splice, without
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.names import checked, hashed
from pdplugins.gateway.terms import FIELD
from pdplugins.limits import GatewayConfig

DEFAULTS = GatewayConfig()
UNKNOWN = "?"
"""Of what has not been looked for."""
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
"""Fields with which the rest of an answer depends on nothing but the tokens so far, so that another worker may go on.
That holds for sampled tokens too; with a seed, which SGLang uses where it runs deterministically, they also depend on
the position."""
COMPLETION_SAMPLING = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "ignore_eos", "stop_token_ids")},
    **{name: name for name in ("skip_special_tokens", "no_stop_trim")},
    "max_tokens": "max_new_tokens",
    "seed": "sampling_seed",
    "min_tokens": "min_new_tokens",
}
"""Fields of a completion, and what ``/generate`` calls them; SGLang's own server maps them in the same way."""
COMPLETION_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""What a completion means that does not say so; on ``/generate`` a server may prefer others."""
PLAIN_COMPLETION = frozenset(COMPLETION_SAMPLING) | {
    *("model", "prompt", "stream", "stream_options", "user", "rid", "n", "session_id", "priority"),
}
"""Fields of a completion that mean the same on ``/generate``."""

REPLACED = frozenset({"text", "input_ids", "sampling_params", "priority"})
"""Fields that the rest of an answer does not take over."""
NUMBERS = ("n", "max_tokens", "max_completion_tokens", "min_tokens")
"""Fields of OpenAI's API that are whole numbers. SGLang takes them as text, and as 2.0, too."""

TOLD_BY_PREFILL = ("return_hidden_states", "return_routed_experts", "return_sampling_mask", "token_ids_logprob")
"""Fields that ask for what each server of a pair knows of its own tokens only."""


@dataclass(slots=True)
class Call:
    """One request of a client."""

    path: str
    body: bytes
    fields: Mapping[str, Any]
    rid: str
    session: str | None
    headers: Mapping[str, str]
    stream: bool = False
    """Whether the client wants the answer token by token."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, wherever this API has them."""
    prompt: list[int] | str | None = None
    """Token ids or text of the prompt; None for a batch, and for a chat, whose template only workers know."""
    batch: int | None = None
    """Number of prompts of a batch; None for a single prompt."""
    asks: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the body in which it asks for terms of its own."""
    terms: Terms | None = None
    """What of that it gets."""
    goes_on_elsewhere: ClassVar = "only /generate with plain sampling can go on elsewhere"
    answers: int = field(init=False)
    """Answers that it wants to each prompt; 1 where that is no number, which workers refuse."""
    _whole: str | None = field(default=UNKNOWN, init=False, repr=False, compare=False)
    """What `whole` has found out: it is asked for several times."""

    def __post_init__(self) -> None:
        sampling: Any = self.sampling
        if self.path == GENERATE and isinstance(several := self.fields.get("sampling_params"), list):
            sampling = several[0] if several and isinstance(several[0], dict) else {}
        self.answers = _count(sampling.get("n"))

    @property
    def max_tokens(self) -> int | None:
        """Output tokens that the client allows; None when the model's context is the only limit."""
        sampling = self.sampling
        names = ("max_new_tokens",) if self.path == GENERATE else ("max_completion_tokens", "max_tokens")
        for name in names:
            if isinstance(value := sampling.get(name), int):
                return value
            if self.path == GENERATE and name in sampling:  # null: SGLang goes on to the end of the context
                return None
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
        if self.max_tokens is None:  # nobody could say how much is left
            return False
        return sampling.keys() <= SPLITTABLE_SAMPLING and sampling.get("n", 1) == 1 and _only(self.fields, SPLITTABLE)

    @property
    def model(self) -> str | None:
        """The model that the client names."""
        model = self.fields.get("model")
        return model if isinstance(model, str) else None

    @property
    def messages(self) -> bytes:
        """The messages of a chat, as its body has them; nothing for anything else."""
        raw = self.fields.raw("messages") if isinstance(self.fields, Fields) else None
        return b"" if raw is None else bytes(raw)

    @property
    def logprobs(self) -> bool:
        """Whether the client wants logprobs: those of the prompt come from the worker that prefills."""
        return bool(self.fields.get("return_logprob"))

    @property
    def one_answer(self) -> bool:
        """Whether it has one prompt and wants one answer."""
        return self.batch is None and self.answers == 1

    @property
    def whole(self) -> str | None:
        """The field that asks for what two SGLang servers cannot do together; None where there is none.

        The two would make all answers to one prompt in one bootstrap room, and wait for ever. What is said of the
        prompt is said by the server that prefills; the gateway puts that into one answer of ``/generate`` only.
        """
        if self._whole is UNKNOWN:
            self._whole = self._find_whole()
        return self._whole

    def _find_whole(self) -> str | None:
        fields = self.fields
        if self.answers > 1:
            return "n"
        if self.path == COMPLETIONS and fields.get("echo") and fields.get("logprobs"):
            return "echo"
        if self.batch is not None and self.logprobs and fields.get("logprob_start_len") not in (None, -1):
            return "logprob_start_len"
        if _count(self.sampling.get("beam_width")) > 1:
            return "beam_width"
        told = fields.among(TOLD_BY_PREFILL) if isinstance(fields, Fields) else TOLD_BY_PREFILL
        return next((name for name in told if fields.get(name)), None) if told else None

    @property
    def pushes(self) -> bool:
        """Whether KV cache that is computed ahead is where its prompt looks for it: a push has no salt or adapter."""
        return not self._names_adapter and not self.fields.get("cache_salt")

    @property
    def _names_adapter(self) -> bool:
        """Whether its model is ``base:adapter``, as SGLang reads it in OpenAI's API but not in ``/generate``."""
        return self.path != GENERATE and ":" in (self.model or "")

    @property
    def splits_in_decode(self) -> bool:
        """Whether another worker can go on in the middle of its answer, perhaps asked by ``/generate``."""
        return self.continuable or self.as_generate() is not None

    def limited(self, tokens: int) -> bytes:
        """Return the body of a request for at most `tokens` of the answer."""
        return splice(self.body, self._limit(tokens))

    def prefill_only(self) -> bytes:
        """Return the body of a request that computes the prompt and no more than one token."""
        if self.path != GENERATE:
            return splice(self.body, {**self._limit(1), "stream": False, "n": 1})
        params = {**self.sampling, "max_new_tokens": 1, "min_new_tokens": 0, "n": 1}
        return splice(self.body, {"sampling_params": params, "stream": False})

    def continued(self, ids: list[int], done: int) -> bytes:
        """Return the body for the rest of the answer: `ids` are the prompt and the `done` tokens so far."""
        sampling = dict(self.sampling)
        sampling["max_new_tokens"] = (self.max_tokens or 0) - done
        if isinstance(least := sampling.get("min_new_tokens"), int):
            sampling["min_new_tokens"] = max(least - done, 0)
        kept = {key: self.fields[key] for key in self.fields if key not in REPLACED}
        return dumps({**kept, "input_ids": ids, "sampling_params": sampling})

    def as_generate(self) -> Call | None:
        """Return a completion as the same request to `/generate`; None when it is no completion, or not a plain one."""
        fields, prompt = self.fields, self.prompt
        if self.path != COMPLETIONS or prompt is None or fields.get("n", 1) != 1 or self._names_adapter:
            return None
        if not _only(fields, PLAIN_COMPLETION) or not _plain_options(fields.get("stream_options")):
            return None
        named = {new: fields.get(name) for name, new in COMPLETION_SAMPLING.items()}
        given = {name: value for name, value in named.items() if value is not None}
        sampling = {"max_new_tokens": DEFAULT_TOKENS[COMPLETIONS], **COMPLETION_DEFAULTS, **given}
        new = {
            "input_ids" if isinstance(prompt, list) else "text": prompt,
            "sampling_params": sampling,
            "stream": self.stream,
        }
        return replace(self, path=GENERATE, body=dumps(new), fields=new, sampling=sampling)

    def _limit(self, tokens: int) -> dict[str, Any]:
        if self.path != GENERATE:
            return {"max_tokens": tokens, "max_completion_tokens": tokens, "min_tokens": 0}
        least = self.sampling.get("min_new_tokens")
        params = {**self.sampling, "max_new_tokens": tokens}
        return {"sampling_params": params | ({"min_new_tokens": min(least, tokens)} if isinstance(least, int) else {})}


def parse(
    path: str,
    body: bytes,
    rid: str,
    session: str | None = None,
    headers: Mapping[str, str] | None = None,
    limits: GatewayConfig = DEFAULTS,
) -> Call:
    """Parse a request. Raises GatewayError for what is not a JSON object, or more than `limits` allow.

    :param rid: its name where the client gives none.
    :param session: its session where a header names one; else a field of the body may.
    :param headers: what the workers are to get of the client's headers.
    """
    fields = Fields(body, limits.max_json_depth)
    asks = {"priority": fields.get("priority"), FIELD: fields.get(FIELD)}
    body, fields = _passed_on(path, body, fields, limits)
    if (stream := fields.get("stream")) not in (None, True, False):  # SGLang takes text too, such as "no"
        raise GatewayError(400, "stream is not true or false", param="stream")
    model, given = fields.get("model"), fields.get("rid")
    if model is not None:
        if not isinstance(model, str):
            raise GatewayError(400, "model is no text")
        checked("model", model, limits.max_name_chars)
    if isinstance(given, str) and given:
        rid = checked("rid", given, limits.max_name_chars)
    session = session or _session(fields)
    prompt, batch = _prompt(path, fields)
    session = session and hashed(session)
    call = Call(
        path, body, fields, rid, session, headers or {}, bool(stream), _sampling(path, fields), prompt, batch, asks
    )
    if (batch or 1) * call.answers > limits.max_prompts:
        raise GatewayError(400, f"more than {limits.max_prompts} prompts or answers")
    return call


def _passed_on(path: str, body: bytes, fields: Fields, limits: GatewayConfig) -> tuple[bytes, Fields]:
    """Return the body as workers get it, and its fields: without those of the gateway, and with plain numbers."""
    if FIELD in fields:
        try:
            body = without(body, FIELD)
        except ValueError:  # a name that is no UTF-8
            raise GatewayError(400, "the body is not JSON") from None
        fields = Fields(body, limits.max_json_depth)
    if path != GENERATE and (numbers := _numbers(fields)):
        body = splice(body, numbers)
        fields = Fields(body, limits.max_json_depth)
    if own := fields.among(OURS):
        body = splice(body, dict.fromkeys(own))
    return body, fields


def _numbers(fields: Fields) -> dict[str, int]:
    """Return those of `NUMBERS` that are written in another way. Raises GatewayError for what is no whole number."""
    found = {}
    for name in NUMBERS:
        value = fields.get(name)
        if value is None or type(value) is int:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not number.is_integer() or abs(number) > LARGEST:
            raise GatewayError(400, f"{name} is no whole number", param=name)
        found[name] = int(number)
    return found


def _session(fields: Fields) -> str | None:
    for name in SESSION_FIELDS:
        if isinstance(session := fields.get(name), str) and session:
            return session
    return None


def _sampling(path: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if path != GENERATE:
        return fields
    params = fields.get("sampling_params")
    return params if isinstance(params, dict) else {}


def _prompt(path: str, fields: Fields) -> tuple[list[int] | str | None, int | None]:
    """Return the prompt, or how many there are."""
    names = ("prompt",) if path == COMPLETIONS else ("input_ids", "text")
    for name in names:
        if (prompt := fields.prompt(name)) is not None:
            return prompt, None
    return None, next(filter(None, map(fields.prompts, names)), None)


def _count(value: Any) -> int:
    """Return a number as SGLang reads it, also from text; 1 for what is none."""
    try:
        return int(value or 1)
    except (TypeError, ValueError, OverflowError):
        return 1


def _plain_options(options: Any) -> bool:
    """Tell whether a stream is to have no more than the usage at its end."""
    return options is None or (isinstance(options, dict) and options.keys() <= {"include_usage"})


def _only(fields: Mapping[str, Any], allowed: frozenset[str]) -> bool:
    return fields.only(allowed) if isinstance(fields, Fields) else fields.keys() <= allowed
