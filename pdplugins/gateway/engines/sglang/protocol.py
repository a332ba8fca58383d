"""What SGLang's servers understand: bootstrap fields, bodies of the legs of a request, and their answers.

The body of a client goes to the workers as it came; fields of the gateway are appended to its bytes. Of two equal keys
JSON parsers take the last one, SGLang's too, so an appended field replaces the client's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

GENERATE = "/generate"
TOKENIZE = "/v1/tokenize"
DETOKENIZE = "/v1/detokenize"
ABORT = "/abort_request"
LOADS = "/v1/loads"
SERVER_INFO = "/server_info"
DONE = b"data: [DONE]"
DONE_EVENT = DONE + b"\n\n"
EVENT_END = b"\n\n"
EVENT_START = b"data: "
ERROR = b'{"error"'
ERROR_EVENT = EVENT_START + ERROR
ABORTED = b'"type":"abort"'
MAX_ROOM = 2**63 - 1
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_NO_CHOICE, _ROLE, _FINISH = b'"choices":[]', b'"role":"assistant","content":""', b'"finish_reason":"'
SILENT = {COMPLETIONS: (_NO_CHOICE,), CHAT: (_NO_CHOICE, _ROLE, _FINISH)}
"""What marks an event without a token. SGLang's chats begin with the role, and end with the reason by itself; no text
can look like it, because a quotation mark in a text has a backslash before it."""
SAID_TOKENS = b'"completion_tokens":'
COUNTS = ("prompt_tokens", "completion_tokens")
MOST_VERSIONS = 1000
"""Weights that gave the tokens of one answer, at most: every event of an answer of several workers tells of them."""
LARGEST = 10**12
"""No count of tokens is larger."""
_NUMBER = re.compile(rb"\s*\d{1,12}(?!\d)")
BOOTSTRAP_FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


class OddAnswerError(Exception):
    """An answer of a server in which something has not the type that it should have."""


def splice(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return the JSON object `body` with `fields` appended. `body` must be an object."""
    if not fields:
        return body
    head = body[: body.rindex(b"}")].rstrip()
    comma = b"" if head.endswith(b"{") else b","
    return head + comma + dumps(fields)[1:]


def without(body: bytes, field: str) -> bytes:
    """Return the JSON object `body` without one of its fields."""
    try:
        fields = _read_fields(body)
    except msgspec.DecodeError:  # NaN, or half of a surrogate pair, which SGLang takes
        return _encode({name: value for name, value in json.loads(body.decode()).items() if name != field}).encode()
    return msgspec.json.encode({name: value for name, value in fields.items() if name != field})


_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = json.JSONEncoder(separators=(",", ":")).encode


def dumps(data: Any) -> bytes:
    """Return compact JSON."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:  # half of a surrogate pair
        return _encode(data).encode()


def loads(data: bytes) -> Any:
    """Return what JSON says. Raises ValueError.

    Token ids are most of a body, and msgspec is five times as fast with them; what it is too strict for (NaN, half
    surrogate pairs) is read as SGLang reads it.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def bootstrap(host: str, port: int | None, room: int, batch: int | None) -> dict[str, Any]:
    """Return the fields that tie the two legs of a disaggregated request together; lists for a batch of prompts."""
    if batch is None:
        return dict(zip(BOOTSTRAP_FIELDS, (host, port, room), strict=True))
    rooms = [(room + index) % MAX_ROOM for index in range(batch)]
    return dict(zip(BOOTSTRAP_FIELDS, ([host] * batch, [port] * batch, rooms), strict=True))


def prefix_fields(ids: Sequence[int], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that only puts the KV cache of `ids` into place: for one token, which is not used.

    :param like: the request that the prefix belongs to; fields that keep KV caches apart are taken over.
    """
    fields: dict[str, Any] = {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
    }
    return fields | {key: like[key] for key in ("lora_path", "extra_key") if key in like}


def failure(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the error with which a server ends an answer of ``/generate``; its streams have no other form of error.

    An abort without a status is no error: a client or the gateway has asked for it. Raises OddAnswerError.
    """
    reason = meta_of(said).get("finish_reason") or {}
    status = reason.get("status_code") if reason.get("type") == "abort" else None
    return None if status is None else {"message": reason.get("message"), "code": whole(status)}


def refusal(data: bytes) -> bytes:
    """Return the error that an answer tells, as JSON in OpenAI's form. Raises OddAnswerError."""
    every = (parsed(event) or {} for event in events(data))
    return dumps({"error": next(filter(None, (said.get("error") or failure(said) for said in every)), {})})


def meta_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``meta_info`` of an answer of ``/generate``, which may be missing. Raises OddAnswerError.

    What the gateway reads of it has the right types then: counts, the reason why the answer ended, logprobs.
    """
    meta = said.get("meta_info")
    if meta is None:
        return {}
    if not isinstance(meta, dict) or not isinstance(meta.get("finish_reason"), dict | None):
        raise OddAnswerError("an answer with an odd meta_info")
    for name in COUNTS:
        whole(meta.get(name))
    if not isinstance(meta.get("input_token_logprobs"), list | None):
        raise OddAnswerError("an answer with odd logprobs")
    spans = meta.get("weight_versions")
    few = isinstance(spans, list | None) and len(spans or ()) <= MOST_VERSIONS
    if not few or not all(isinstance(span, dict) for span in spans or ()):
        raise OddAnswerError("an answer with odd versions of weights")
    for span in spans or ():
        whole(span.get("start"))
        whole(span.get("end"))
    return meta


def said_tokens(piece: bytes) -> int | None:
    """Return the output tokens so far by the last event of ``/generate`` in `piece`; None where it does not say.

    No text can look like it, because a quotation mark in a text has a backslash before it.
    """
    at = piece.rfind(SAID_TOKENS)
    match = None if at < 0 else _NUMBER.match(piece, at + len(SAID_TOKENS))
    return None if match is None else int(match[0])


def joined(before: Sequence[Mapping[str, Any]], spans: Sequence[Mapping[str, Any]], done: int) -> list[dict[str, Any]]:
    """Return the ``weight_versions`` of an answer of several workers: those `before` have said `done` tokens of it."""
    every = [dict(span) for span in before]
    for span in spans:
        moved = {**span, "start": whole(span.get("start")) + done, "end": whole(span.get("end")) + done}
        if every and every[-1].get("version") == moved.get("version"):
            every[-1]["end"] = moved["end"]
        else:
            every.append(moved)
    return every


def whole(number: Any) -> int:
    """Return a count, 0 for None. Raises OddAnswerError for anything else."""
    if number is None:
        return 0
    if not isinstance(number, int) or not 0 <= number <= LARGEST:
        raise OddAnswerError("an answer with a count that is none")
    return number


def generated(event: bytes) -> dict[str, Any] | None:
    """Return the object in one event of ``/generate``; None when there is none. Raises OddAnswerError for odd parts."""
    said = parsed(event)
    if said is not None:
        meta_of(said)
        if not isinstance(said.get("output_ids"), list | None) or not isinstance(said.get("text"), str | None):
            raise OddAnswerError("an answer with an odd text or odd token ids")
    return said


def events(data: bytes) -> list[bytes]:
    """Split whole events of a stream."""
    return [event for event in data.split(EVENT_END) if event]


def parsed(event: bytes) -> dict[str, Any] | None:
    """Return the object in one event of a stream, or in a whole answer; None when there is none."""
    try:
        data = loads(event.removeprefix(EVENT_START))
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
