"""Raw connections to a gateway, for clients that no library would be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.gateway.rig import ask

Open = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def head(length: int, path: str = "/generate", more: str = "") -> bytes:
    lines = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
    )
    return lines.encode()


def message(**more: Any) -> bytes:
    body = json.dumps(ask(**more)).encode()
    return head(len(body)) + body


@contextlib.asynccontextmanager
async def sockets(url: str) -> AsyncIterator[Open]:
    """Opens raw connections to the gateway, and closes them in the end."""
    host, port = url.removeprefix("http://").split(":")
    opened: list[asyncio.StreamWriter] = []

    async def connect(buffer: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**16 if buffer is None else 1024)
        opened.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in opened:
            writer.close()


async def ends(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the gateway closes the connection."""
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
