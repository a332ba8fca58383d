"""Reads the bodies of requests, within limits of size and time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from pdplugins.gateway.admission import Admission, overloaded
from pdplugins.gateway.errors import GatewayError
from pdplugins.gateway.reading import TooLongError, read_whole
from pdplugins.limits import MIB


async def read_body(request: web.BaseRequest, admission: Admission) -> bytes:
    """Return the body. The caller gives its bytes back to `admission`. Raises GatewayError."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise GatewayError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body without compression")
    most_mib, whole = admission.settings.max_body_mib, request.content.is_eof()
    body = request.content.read_nowait() if whole else b""
    length = len(body) if whole else request.content_length or 0
    if length > most_mib * MIB:
        raise _too_long(most_mib)
    if whole:  # it came with the head, as most bodies do
        admission.take_bytes(length)
        return body
    admission.check_bytes(length)
    return await _read(request, admission)


async def _read(request: web.BaseRequest, admission: Admission) -> bytes:
    """Read a body to its end. It takes room for what has come: for what a head only announces others would be refused.

    A body that finds no room for its next bytes is refused, and gives its room back. None waits for the others, so
    bodies that fill all the room together do not keep each other from their end.
    """
    taken = 0

    async def more() -> bytes:
        nonlocal taken
        part = await request.content.readany()
        admission.take_bytes(len(part))
        taken += len(part)
        return part

    try:
        return await _whole(more, request, admission)
    except BaseException:
        admission.give_bytes(taken)
        raise


async def _whole(more: Callable[[], Awaitable[bytes]], request: web.BaseRequest, admission: Admission) -> bytes:
    settings = admission.settings
    try:
        with admission.reading.within(settings.body_s):
            return await read_whole(more, settings.max_body_mib * MIB)
    except TooLongError:
        raise _too_long(settings.max_body_mib) from None
    except TimeoutError:
        if admission.closed:
            raise overloaded("the gateway stops") from None
        raise GatewayError(HTTPStatus.REQUEST_TIMEOUT, f"the body was not there after {settings.body_s:g} s") from None
    except RuntimeError:  # aiohttp's: its connection was closed before anyone read
        if request.transport is not None:
            raise
        raise ConnectionResetError from None
    except web.RequestPayloadError:
        raise GatewayError(HTTPStatus.BAD_REQUEST, "the body is not what its head says") from None


def _too_long(most_mib: int) -> GatewayError:
    return GatewayError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than {most_mib} MiB")
