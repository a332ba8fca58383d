"""The fields of a request's body that the gateway looks at.

A body is mostly prompt, and may hold anything else. It is read without building what it says; a field is built when it
is first asked for.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.nesting import too_nested

PROMPTS = ("prompt", "input_ids", "text")
OURS = (
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"),
    *("disagg_prefill_dp_rank", "data_parallel_rank", "routed_dp_rank"),
)
"""Fields that say who is paired with whom. The gateway decides that, not a client."""
KNOWN = (
    *PROMPTS,
    *OURS,
    *("messages", "tools", "tool_choice", "chat_template_kwargs", "continue_final_message"),
    *("model", "rid", "session_id", "user", "stream", "stream_options", "priority", "extra_key", "lora_path"),
    *("return_logprob", "sampling_params", "n", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
    *("stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "seed", "skip_special_tokens"),
    "no_stop_trim",
)
LONGEST_VALUE = 256 * 2**10
"""Bytes of a field other than prompts that the gateway looks into."""
LONGEST_LAX = 256 * 2**10
"""Bytes of a body that is not quite JSON."""

_Raw = msgspec.defstruct("_Raw", [(name, msgspec.Raw, None) for name in KNOWN])
_decode = msgspec.json.Decoder(_Raw).decode


class Fields(Mapping[str, Any]):
    """The fields of a body, of those in `KNOWN`. What is not JSON, or too much, raises GatewayError."""

    __slots__ = ("_body", "_raw", "_values")

    def __init__(self, body: bytes, most_depth: int) -> None:
        if (why := too_nested(body, most_depth)) is not None:
            raise GatewayError(400, why)
        self._body = body
        self._values: dict[str, Any] = {}
        self._raw: Any = _read(body)

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        raw = self.raw(name)
        if raw is None:
            raise KeyError(name)
        if len(raw) > LONGEST_VALUE:
            raise GatewayError(400, f"{name} is longer than {LONGEST_VALUE} bytes")
        value = self._values[name] = _value(name, raw)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in KNOWN if getattr(self._raw, name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.raw(name) is not None

    def raw(self, name: str) -> Any:
        """Return a field as the body has it, a msgspec.Raw; None when it is not there."""
        return getattr(self._raw, name, None)

    def prompt(self, name: str) -> list[int] | str | None:
        """Return a field that may be the prompt: token ids or text; None when it is several prompts, or not there."""
        raw = self.raw(name)
        kind = _kind(raw)
        if kind == "text":
            text = _value(name, raw)
            return text if isinstance(text, str) else None
        if kind != "ids":
            return None
        try:
            return _ids(raw)
        except msgspec.DecodeError:
            raise GatewayError(400, f"{name} holds something that is no token id") from None

    def prompts(self, name: str) -> int | None:
        """Return the number of prompts in a field; None when it is one, or not there."""
        raw = self.raw(name)
        kind = _kind(raw)
        if kind not in ("id_lists", "texts"):
            return None
        data = bytes(raw)
        if kind == "id_lists":
            return data.count(b"[") - 1
        plain = data.replace(b"\\\\", b"")
        return (plain.count(b'"') - plain.count(b'\\"')) // 2

    def only(self, allowed: frozenset[str]) -> bool:
        """Tell whether the body has no field but these, all of them known."""
        try:
            _strict(allowed)(self._body)
        except msgspec.DecodeError:
            return False
        return True


def _read(body: bytes) -> Any:
    """Read a body as SGLang would: it takes NaN and half surrogate pairs too."""
    try:
        return _decode(body)
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
    known = {name: msgspec.Raw(json.dumps(data[name]).encode()) for name in KNOWN if name in data}
    return _Raw(**known)


def _value(name: str, raw: Any) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(bytes(raw))
    except ValueError:
        raise GatewayError(400, f"{name} is not JSON") from None


_BEGINNING = re.compile(rb'(?P<text>")|\[\s*(?:(?P<ids>[-\d])|(?P<id_lists>\[)|(?P<texts>"))')
_ids = msgspec.json.Decoder(list[int]).decode


def _kind(raw: Any) -> str | None:
    """Tell what a prompt is, from its first bytes."""
    if raw is None:
        return None
    found = _BEGINNING.match(raw)
    return found.lastgroup if found else None


@functools.cache
def _strict(allowed: frozenset[str]) -> Any:
    """Return what reads bodies with these fields only, and raises msgspec.ValidationError for others."""
    kind = msgspec.defstruct(
        "_Only", [(name, msgspec.Raw, None) for name in sorted(allowed)], forbid_unknown_fields=True
    )
    return msgspec.json.Decoder(kind).decode
