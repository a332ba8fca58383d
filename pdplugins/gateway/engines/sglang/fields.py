"""The fields of a request's body that the gateway looks at.

A body is mostly prompt, and may hold anything else. A short one is read at once. A long one is read without building
what it says: of its fields those are built that the gateway asks for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.nesting import too_nested
from pdplugins.gateway.terms import FIELD

PROMPTS = ("prompt", "input_ids", "text")
OURS = (
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"),
    *("disagg_prefill_dp_rank", "data_parallel_rank", "routed_dp_rank", "decode_tp_size", "http_worker_ipc"),
    *("encoder_urls", "need_wait_for_mm_inputs", "num_items_assigned", "kv_router_hint"),
    "priority",
)
"""Fields that say who is paired with whom, whom a server asks, and what goes first. A client decides none of that."""
OPAQUE = ("messages", "tools", "tool_choice", "chat_template_kwargs", "continue_final_message")
"""Fields that the gateway passes on and never reads."""
KNOWN = (
    *PROMPTS,
    *OURS,
    *OPAQUE,
    FIELD,
    *("model", "rid", "session_id", "user", "stream", "stream_options", "extra_key", "lora_path", "cache_salt"),
    *("return_logprob", "sampling_params", "n", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
    *("stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "seed", "skip_special_tokens"),
    *("no_stop_trim", "echo", "logprobs", "logprob_start_len", "beam_width"),
    *("return_hidden_states", "return_routed_experts", "return_sampling_mask", "token_ids_logprob"),
)
LONGEST_VALUE = 256 * 2**10
"""Bytes of a field other than prompts that the gateway looks into."""
LONGEST_LAX = 256 * 2**10
"""Bytes of a body that is not quite JSON."""
SHORT = 64 * 2**10
"""Bytes of a body that is read at once."""

_TYPES: dict[str, Any] = {
    **dict.fromkeys(KNOWN, Any),
    **dict.fromkeys(OPAQUE, msgspec.Raw),
    **{"prompt": list[int] | str | None, "input_ids": list[int] | None, "text": str | None},
}
_Short = msgspec.defstruct("_Short", [(name, kind, UNSET) for name, kind in _TYPES.items()])
_Long = msgspec.defstruct("_Long", [(name, msgspec.Raw, UNSET) for name in KNOWN])
_read_short = msgspec.json.Decoder(_Short).decode
_read_long = msgspec.json.Decoder(_Long).decode
_read_ids = msgspec.json.Decoder(list[int]).decode


class Fields(Mapping[str, Any]):
    """The fields of a body, of those in `KNOWN`. What is not JSON, or too much, raises GatewayError."""

    __slots__ = ("_body", "_fields", "_long")

    def __init__(self, body: bytes, most_depth: int) -> None:
        if (why := too_nested(body, most_depth)) is not None:
            raise GatewayError(400, why)
        self._body = body
        self._long = False
        """Whether the fields are as the body has them."""
        if len(body) <= SHORT:
            try:
                self._fields: Any = _read_short(body)
            except ValueError:
                self._long = True
        else:
            self._long = True
        if self._long:
            self._fields = _read(body)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field."""
        value = getattr(self._fields, name, UNSET)
        if value is UNSET:
            return default
        return self._value(name, value) if type(value) is msgspec.Raw else value

    def __getitem__(self, name: str) -> Any:
        value = self.get(name, UNSET)
        if value is UNSET:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return getattr(self._fields, str(name), UNSET) is not UNSET

    def __iter__(self) -> Iterator[str]:
        return (name for name in KNOWN if getattr(self._fields, name) is not UNSET)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def among(self, names: tuple[str, ...]) -> list[str]:
        """Return those of some fields that are there."""
        values_of, none = _together(names)
        values = values_of(self._fields)
        return [] if values == none else [name for name, value in zip(names, values, strict=True) if value is not UNSET]

    def raw(self, name: str) -> Any:
        """Return a field of `OPAQUE` as the body has it, a msgspec.Raw; None when it is not there."""
        value = getattr(self._fields, name)
        return None if value is UNSET else value

    def prompt(self, name: str) -> list[int] | str | None:
        """Return a field that may be the prompt: token ids or text; None when it is several prompts, or not there."""
        value = getattr(self._fields, name)
        if not self._long:
            return value or None if value is not UNSET else None
        kind = _kind(value)
        if kind == "text":
            text = _built(name, value)
            return text if isinstance(text, str) else None
        if kind != "ids":
            return None
        try:
            return _read_ids(value)
        except msgspec.DecodeError:
            raise GatewayError(400, f"{name} holds something that is no token id") from None

    def prompts(self, name: str) -> int | None:
        """Return the number of prompts in a field; None when it is one, or not there."""
        value = getattr(self._fields, name)
        kind = _kind(value) if self._long else None
        if kind == "id_lists":
            return bytes(value).count(b"[") - 1
        if kind != "texts":
            return None
        plain = bytes(value).replace(b"\\\\", b"")
        return (plain.count(b'"') - plain.count(b'\\"')) // 2

    def only(self, allowed: frozenset[str]) -> bool:
        """Tell whether the body has no field but these."""
        try:
            _strict(allowed)(self._body)
        except msgspec.DecodeError:
            return False
        return True

    def _value(self, name: str, raw: Any) -> Any:
        if len(raw) > LONGEST_VALUE:
            raise GatewayError(400, f"{name} is longer than {LONGEST_VALUE} bytes")
        value = _built(name, raw)
        setattr(self._fields, name, value)
        return value


def _read(body: bytes) -> Any:
    """Read a body as SGLang would: it takes NaN and half surrogate pairs too."""
    try:
        return _read_long(body)
    except msgspec.ValidationError:
        raise GatewayError(400, "the body is not a JSON object") from None
    except msgspec.DecodeError:
        if len(body) > LONGEST_LAX:
            raise GatewayError(400, "the body is not JSON") from None
    try:
        data = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise GatewayError(400, "the body is not JSON") from None
    if not isinstance(data, dict):
        raise GatewayError(400, "the body is not a JSON object")
    return _Long(**{name: msgspec.Raw(json.dumps(data[name]).encode()) for name in KNOWN if name in data})


def _built(name: str, raw: Any) -> Any:
    with contextlib.suppress(ValueError):
        return msgspec.json.decode(raw)
    try:
        return json.loads(bytes(raw))
    except ValueError:
        raise GatewayError(400, f"{name} is not JSON") from None


_BEGINNING = re.compile(rb'(?P<text>")|\[\s*(?:(?P<ids>[-\d])|(?P<id_lists>\[)|(?P<texts>"))')


def _kind(raw: Any) -> str | None:
    """Tell what a prompt is, from its first bytes."""
    found = None if raw is UNSET else _BEGINNING.match(raw)
    return found.lastgroup if found else None


@functools.cache
def _together(names: tuple[str, ...]) -> tuple[attrgetter[Any], tuple[Any, ...]]:
    """Return what reads some fields at once, and what it reads where none is there, as in most bodies."""
    return attrgetter(*names), (UNSET,) * len(names)


@functools.cache
def _strict(allowed: frozenset[str]) -> Any:
    """Return what reads bodies with these fields only, and raises msgspec.ValidationError for others."""
    fields = [(name, msgspec.Raw, UNSET) for name in sorted(allowed)]
    return msgspec.json.Decoder(msgspec.defstruct("_Only", fields, forbid_unknown_fields=True)).decode
