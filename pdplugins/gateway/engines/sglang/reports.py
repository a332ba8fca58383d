"""Reads what an SGLang server says of itself and of its load. Anything may be there: another server, or garbage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from pdplugins.gateway.engine import Facts, LoadReport, ServerKind
from pdplugins.gateway.engines.sglang.protocol import loads

Number = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
ReportT = TypeVar("ReportT")


class Info(msgspec.Struct):
    """``/server_info``, as far as the gateway reads it."""

    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: Port | None = None
    incremental_streaming_output: bool | None = None
    tp_size: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    max_total_num_tokens: Number | None = None


class Load(msgspec.Struct):
    """The load of one data-parallel rank."""

    num_running_reqs: Number | None = None
    num_waiting_reqs: Number | None = None
    num_waiting_uncached_tokens: Number | None = None
    max_total_num_tokens: Number | None = None
    num_used_tokens: Number | None = None
    timestamp: float | str | None = None


class Loads(msgspec.Struct):
    """``/v1/loads``."""

    loads: list[Load]


def facts_of(body: bytes, *, dual: bool) -> Facts:
    """Read ``/server_info``. Raises ValueError.

    :param dual: decode servers run pdplugins' dual-role instance.
    """
    info = _read(body, Info)
    kinds = {"prefill": ServerKind.PREFILL, "decode": ServerKind.DUAL if dual else ServerKind.DECODE}
    return Facts(
        kind=kinds.get(info.disaggregation_mode or "", ServerKind.UNIFIED),
        kv_capacity_tokens=info.max_total_num_tokens or 0,
        tp=info.tp_size,
        bootstrap_port=info.disaggregation_bootstrap_port,
        incremental=bool(info.incremental_streaming_output),
    )


def report_of(body: bytes) -> LoadReport:
    """Read ``/v1/loads``, summed over a server's data-parallel ranks. Raises ValueError."""
    loads = _read(body, Loads).loads
    used = [load.num_used_tokens for load in loads if load.num_used_tokens is not None]
    return LoadReport(
        running_requests=sum(load.num_running_reqs or 0 for load in loads),
        waiting_requests=sum(load.num_waiting_reqs or 0 for load in loads),
        waiting_tokens=sum(load.num_waiting_uncached_tokens or 0 for load in loads),
        kv_capacity_tokens=sum(load.max_total_num_tokens or 0 for load in loads),
        used_kv_tokens=sum(used) if loads and len(used) == len(loads) else None,
        stamps=tuple(load.timestamp for load in loads),
    )


class Tokens(msgspec.Struct):
    """``/v1/tokenize``."""

    tokens: list[int]


def tokens_of(body: bytes) -> list[int]:
    """Read ``/v1/tokenize``. Raises ValueError."""
    try:
        return msgspec.json.decode(body, type=Tokens).tokens
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None


class Detokenized(msgspec.Struct):
    """``/v1/detokenize`` of several lists of tokens."""

    text: list[str]


def texts_of(body: bytes, count: int) -> list[str]:
    """Read ``/v1/detokenize`` of so many lists. Raises ValueError."""
    texts = _read(body, Detokenized).text
    if len(texts) != count:
        raise ValueError(f"{len(texts)} texts instead of {count}")
    return texts


def _read(body: bytes, kind: type[ReportT]) -> ReportT:
    try:
        data: Any = loads(body)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"{type(data).__name__} instead of an object")  # noqa: TRY004 - it is data, not an argument
    return msgspec.convert(data, kind, strict=False)
